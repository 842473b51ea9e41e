"""Stores of records, in RAM and on disk, behind one protocol. Imports nothing of the bank around it."""

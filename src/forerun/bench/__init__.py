"""Measurements for users' own machines. The variants of a comparison run interleaved in one process, never one after the other."""

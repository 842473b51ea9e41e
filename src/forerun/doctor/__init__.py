"""Looks whether this machine, the settings, the bank and the numbers are as they should be, and says how to mend what is not."""

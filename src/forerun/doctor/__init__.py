"""Checks of this machine, the settings, the bank and the computed numbers, with a remedy for each problem."""

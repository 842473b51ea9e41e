"""The parts of `benchmarks/bank.py`."""

"""The parts of `benchmarks/restore_layout.py`."""

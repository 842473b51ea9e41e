"""Stored state: the tiers that hold records, the retention policy, and the one path by which state is restored."""

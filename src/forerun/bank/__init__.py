"""Stored state: the tiers that keep records, what is kept, and the one way by which a conversation comes back."""

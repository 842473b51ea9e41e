"""Requests in, events out: the queue, the one thread that owns MLX, and what is counted on the way."""

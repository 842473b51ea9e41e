"""Requests in, events out: the queue, the one thread that owns MLX, metrics and the request log."""

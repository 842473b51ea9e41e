"""A server that writes what its MLX thread does, and what can be concluded of that. Not a benchmark."""

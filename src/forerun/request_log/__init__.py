"""The request log: a JSON line for each request, and what can be read off such lines later. Knows no engine, no HTTP and no MLX."""

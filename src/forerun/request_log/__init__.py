"""The request log: one JSON line per request, and the analysis of such lines. Knows no engine, no HTTP and no MLX."""

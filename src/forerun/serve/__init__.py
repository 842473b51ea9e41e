"""The HTTP server: request guard, dialects and streams around an engine. MLX is never imported here."""

"""The HTTP server: doors, dialects and streams around an engine. MLX is never imported here."""

"""Models of the hub on this machine: what was pulled, and pulling. Loads huggingface_hub only where it pulls or removes; no MLX."""

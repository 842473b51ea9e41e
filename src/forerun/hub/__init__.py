"""Hub models on this machine: the catalogue, and pulling. Loads huggingface_hub only to pull or remove; no MLX."""

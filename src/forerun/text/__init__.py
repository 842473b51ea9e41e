"""Text and tokens: tokenizer, chat template, prompts, and the answer's way back from tokens to text. Pure; no MLX."""

"""Text and tokens: tokenizer, chat template, prompts, detokenizing and parsing of answers. Pure; no MLX."""

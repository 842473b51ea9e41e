"""Parts of `against_llama_cpp.py`: servers, prompts, and the bundled model as GGUF."""

"""The context length: the requested one, else the model's, limited by memory. Pure."""

from __future__ import annotations

from forerun.errors import ConfigError

LEAST_TOKENS = 4096  # the default is not lower, whatever memory holds


def context_of(requested: int | None, declared: int, bytes_per_token: int, free_bytes: int) -> int:
    """Tokens of prompt and answer together. free_bytes: available to one conversation. Raises ConfigError: more than the model declares."""
    if requested is not None and requested > declared:
        raise ConfigError(f"context = {requested}: the model was made for {declared} tokens", hint=f"at most {declared}")
    return requested or min(declared, max(LEAST_TOKENS, free_bytes // bytes_per_token))

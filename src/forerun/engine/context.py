"""How long a conversation may get: as was asked for, as the model declares, or as memory holds. Pure; knows numbers alone."""

from __future__ import annotations

from forerun.errors import ConfigError

LEAST_TOKENS = 4096  # served even if memory is shorter than that


def context_of(asked: int | None, declared: int, bytes_per_token: int, free_bytes: int) -> int:
    """Tokens of prompt and answer together. free_bytes: what one conversation may take.

    Raises ConfigError: the model was not made for so many.
    """
    if asked is not None and asked > declared:
        raise ConfigError(f"context = {asked}: the model was made for {declared} tokens", hint=f"at most {declared}")
    return asked or min(declared, max(LEAST_TOKENS, free_bytes // bytes_per_token))

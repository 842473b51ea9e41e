"""Tokens and their probabilities as OpenAI's dialects write them. Pure: knows bytes, no tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forerun.values import TokenLogprob, TopToken


def word(text: bytes, prefix: str = "") -> str:
    r"""The token's text; if that is not whole characters, its bytes as \xNN after `prefix`."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in text)


def entries(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """The tokens in the form of chat completions and Responses."""
    return [_entry(token) | {"top_logprobs": [_entry(each) for each in token.top]} for token in tokens]


def _entry(token: TokenLogprob | TopToken) -> dict[str, Any]:
    return {"token": word(token.text), "bytes": list(token.text), "logprob": token.logprob}

"""The stop tokens of a checkpoint: those that its files declare, and the one with which its template ends a turn.

Knows nothing of requests and their stop strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from forerun.errors import ModelError
from forerun.text.files import exists, read_object
from forerun.text.template import Template
from forerun.values import Chat

ANSWER = "xyzzy"


def stop_ids(library: tokenizers.Tokenizer, folder: Path) -> frozenset[int]:
    """The ids of the stop tokens. Raises ModelError if there are none."""
    found = frozenset([*_declared(library, folder), *_turn_end(library, folder)])
    if not found:
        raise ModelError(f"{folder} names no token that ends an answer", hint="generation_config.json should have eos_token_id")
    return found


def _declared(library: tokenizers.Tokenizer, folder: Path) -> Iterator[int]:
    """eos_token_id of generation_config.json and config.json, one or several; eos_token of tokenizer_config.json."""
    config = read_object(folder / "config.json")
    for source in (read_object(folder / "generation_config.json"), config, config.get("text_config") or {}):
        ids = source.get("eos_token_id")
        yield from (id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int))
    token = read_object(folder / "tokenizer_config.json").get("eos_token")
    yield from _id(library, token["content"] if isinstance(token, dict) else token)


def _turn_end(library: tokenizers.Tokenizer, folder: Path) -> Iterator[int]:
    """The special token that the template renders directly after an answer, if any."""
    if not (exists(folder / "chat_template.jinja") or read_object(folder / "tokenizer_config.json").get("chat_template")):
        return
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "b"})
    text = Template.load(folder).attempt(Chat(messages, (), {}), add_generation_prompt=False)
    rest = text.partition(ANSWER)[2].lstrip()
    specials = [token.content for token in library.get_added_tokens_decoder().values() if token.special]
    yield from _id(library, max((token for token in specials if rest.startswith(token)), key=len, default=None))


def _id(library: tokenizers.Tokenizer, token: Any) -> Iterator[int]:
    id = library.token_to_id(token) if token else None
    if id is not None:
        yield id

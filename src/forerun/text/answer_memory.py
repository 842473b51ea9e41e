"""The model's own messages, which clients send back: each is restored to what the model wrote, if it still means the same.

Clients write the arguments of calls differently (white space, order of keys, 9000 for 9000.0) and drop blank text. A call is matched by its
id, its name and the meaning of its arguments; a text by its words. What a client has changed stays changed. Knows messages; nothing of
templates, or of where a `RememberedAnswer` is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from forerun.text.lru import LruCache, Owner
from forerun.text.sampled_texts import SampledText

LIMIT_CHARS = 64 << 20
TEXTS = ("content", "reasoning_content")


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    """An answer as it was returned, and the ids that were sampled for what the template renders it as; sampled_text None: what the template
    renders does not continue the prompt.
    """

    message: Mapping[str, Any]
    sampled_text: SampledText | None

    @property
    def key(self) -> str:
        """What finds it, however a client writes it."""
        return next(_keys(self.message))

    def encode(self) -> bytes:
        """Bytes for `decode`. They are stored on disk: another format needs another version of the index (bank/tier/database.py)."""
        return json.dumps([self.message, self.sampled_text]).encode()

    @classmethod
    def decode(cls, data: bytes) -> RememberedAnswer:
        """The answer that `encode` made these bytes of."""
        message, sampled_text = json.loads(data)
        return cls(message, SampledText(*sampled_text) if sampled_text else None)


class AnswerMemory:
    """Assistant messages of each tenant; above LIMIT_CHARS the least recently used are evicted. Shared by threads."""

    def __init__(self) -> None:
        self._messages: LruCache[tuple[str, str], Mapping[str, Any]] = LruCache(LIMIT_CHARS, _num_chars)

    def add(self, message: Mapping[str, Any], *, tenant: str, session: str = "") -> None:
        """Store an assistant message as it was returned. session: see `Owner`."""
        for key in _keys(message):
            self._messages.put((tenant, key), message, Owner(tenant, session))

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the messages of which all owners are gone."""
        self._messages.forget(is_gone)

    def restore(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> tuple[Mapping[str, Any], ...]:
        """The messages, with each field that repeats an answer as that answer was returned."""
        return tuple(self._restored(message, tenant) if message["role"] == "assistant" else message for message in messages)

    def missing_keys(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> list[str]:
        """Keys of the assistant messages that are not in the memory."""
        keys = [next(_keys(message)) for message in messages if message["role"] == "assistant"]
        return [key for key in keys if self._messages.get((tenant, key)) is None]

    def _restored(self, message: Mapping[str, Any], tenant: str) -> Mapping[str, Any]:
        stored = next((match for key in _keys(message) if (match := self._messages.get((tenant, key)))), None)
        if stored is None:
            return message
        texts = {name: stored[name] for name in TEXTS if name in stored and _is_same_text(stored[name], message.get(name))}
        calls = {"tool_calls": stored["tool_calls"]} if _are_same_calls(stored.get("tool_calls"), message.get("tool_calls")) else {}
        return {**message, **texts, **calls}


def _keys(message: Mapping[str, Any]) -> Iterator[str]:
    """Digests that find the message, the surest first: of its calls with ids and meaning, of each id alone; without calls, of its words."""
    calls = message.get("tool_calls") or ()
    if calls:
        yield _digest("calls", *(part for call in calls for part in _meaning(call)))
        yield from (_digest("call", call["id"]) for call in calls if isinstance(call.get("id"), str))
    else:
        yield _digest("text", *(str(message.get(name) or "").strip() for name in TEXTS))


def _digest(*parts: Any) -> str:
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _num_chars(message: Mapping[str, Any]) -> int:
    return len(json.dumps(message))


def _is_same_text(stored: Any, sent: Any) -> bool:
    return str(stored or "").strip() == str(sent or "").strip()


def _are_same_calls(stored: Any, sent: Any) -> bool:
    return bool(stored) and bool(sent) and [_meaning(call) for call in stored] == [_meaning(call) for call in sent]


def _meaning(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """Id, name and normalised arguments: equal for two spellings of the same call."""
    function = call["function"]
    arguments = function["arguments"]
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        arguments = json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        pass  # not JSON: the same only if the text is the same
    return call.get("id"), function["name"], arguments


def _number(text: str) -> float:
    return int(value) if (value := float(text)).is_integer() else value

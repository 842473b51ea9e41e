"""Answers that come back: what a client repeats of the model's own words is put back as the model wrote it, if it means the same.

Clients write the arguments of calls anew (other white space, other order of keys, 9000 for 9000.0) and drop blank text. A call is known by
its id, its name and what its arguments mean; a text by its words. What a client has changed stays changed. Knows messages; nothing of
templates, or of what becomes of a `Given` that is to be kept.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any

from forerun.text.sampled_texts import SampledText

LIMIT_CHARS = 64 << 20
TEXTS = ("content", "reasoning_content")


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    """An answer as it was given out, and how the model wrote what the template makes of it; wording None: the template makes of it what
    does not continue the prompt.
    """

    message: Mapping[str, Any]
    sampled_text: SampledText | None

    @property
    def key(self) -> str:
        """What it is known by in whatever writing it comes back."""
        return next(_names(self.message))

    def encode(self) -> bytes:
        """All of it, for `decode`. It is kept on disk: another form needs another version of the index (bank/tier/database.py)."""
        return json.dumps([self.message, self.sampled_text]).encode()

    @classmethod
    def decode(cls, data: bytes) -> RememberedAnswer:
        """What `encode` made these bytes of."""
        message, sampled_text = json.loads(data)
        return cls(message, SampledText(*sampled_text) if sampled_text else None)


class AnswerMemory:
    """Remembers assistant messages of each tenant, the latest first to stay. Shared by threads."""

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], Mapping[str, Any]] = OrderedDict()
        self._num_chars = 0
        self._lock = Lock()

    def learn(self, message: Mapping[str, Any], *, tenant: str) -> None:
        """Remember an assistant message as it was given out."""
        with self._lock:
            for name in _names(message):
                self._forget((tenant, name))
                self._messages[tenant, name] = message
                self._num_chars += _num_chars(message)
            while self._num_chars > LIMIT_CHARS:
                self._forget(next(iter(self._messages)))

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._messages.clear()
            self._num_chars = 0

    def restore(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> tuple[Mapping[str, Any], ...]:
        """The messages, with all that is an echo as it was given out."""
        return tuple(self._restored(message, tenant) if message["role"] == "assistant" else message for message in messages)

    def unknown(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> list[str]:
        """Names of answers that may be among the messages and are not remembered."""
        names = [next(_names(message)) for message in messages if message["role"] == "assistant"]
        with self._lock:
            return [name for name in names if (tenant, name) not in self._messages]

    def _restored(self, message: Mapping[str, Any], tenant: str) -> Mapping[str, Any]:
        with self._lock:
            known = next((found for name in _names(message) if (found := self._messages.get((tenant, name)))), None)
        if known is None:
            return message
        texts = {name: known[name] for name in TEXTS if name in known and _is_same_text(known[name], message.get(name))}
        calls = {"tool_calls": known["tool_calls"]} if _are_same_calls(known.get("tool_calls"), message.get("tool_calls")) else {}
        return {**message, **texts, **calls}

    def _forget(self, key: tuple[str, str]) -> None:
        if key in self._messages:
            self._num_chars -= _num_chars(self._messages.pop(key))


def _names(message: Mapping[str, Any]) -> Iterator[str]:
    """What the message can be known by, the surest first: its calls with their ids and what they mean, the ids alone; or else its words."""
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


def _is_same_text(known: Any, sent: Any) -> bool:
    return str(known or "").strip() == str(sent or "").strip()


def _are_same_calls(known: Any, sent: Any) -> bool:
    return bool(known) and bool(sent) and [_meaning(call) for call in known] == [_meaning(call) for call in sent]


def _meaning(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two writings of the same call have in common."""
    function = call["function"]
    arguments = function["arguments"]
    try:
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        arguments = json.dumps(json.loads(written, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        pass  # not JSON: the same only if it is written the same
    return call.get("id"), function["name"], arguments


def _number(text: str) -> float:
    return int(value) if (value := float(text)).is_integer() else value

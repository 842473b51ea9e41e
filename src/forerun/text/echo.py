"""Answers that come back: what a client repeats of the model's own words is put back as the model wrote it, if it means the same.

Clients write the arguments of calls anew (other white space, other order of keys, 9000 for 9000.0) and drop blank text. A call is known by
its id, a text by its words. What a client has changed stays changed. Knows messages; nothing of tokens or templates.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

LIMIT_CHARS = 64 << 20
TEXTS = ("content", "reasoning_content")


class Echoes:
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
    """What the message can be known by: the ids of its calls, or else its words."""
    calls = message.get("tool_calls") or ()
    yield from (f"call {call['id']}" for call in calls if isinstance(call.get("id"), str))
    if not calls:
        yield "text " + "\n".join(str(message.get(name) or "").strip() for name in TEXTS)


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
        value = json.loads(arguments, parse_float=_number) if isinstance(arguments, str) else arguments
        arguments = json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        pass  # not JSON: the same only if it is written the same
    return call.get("id"), function["name"], arguments


def _number(text: str) -> float:
    return int(value) if (value := float(text)).is_integer() else value

"""The model's own messages, which clients send back: each is restored to what the model wrote, if it still means the same.

Clients write the arguments of calls differently (white space, order of keys, 9000 for 9000.0) and drop blank text. A call is matched by its
id, its name and the meaning of its arguments; a text by its words. What a client has changed stays changed. Knows messages; nothing of
templates, or of where a `RememberedAnswer` is stored.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any

from forerun.text.lru import Owner
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
    """Assistant messages of each tenant; above LIMIT_CHARS the oldest are evicted. Shared by threads."""

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], Mapping[str, Any]] = OrderedDict()
        self._owners: dict[tuple[str, str], frozenset[Owner]] = {}
        self._num_chars = 0
        self._lock = Lock()

    def add(self, message: Mapping[str, Any], *, tenant: str, session: str = "") -> None:
        """Store an assistant message as it was returned. session: see `Owner`."""
        with self._lock:
            for key in ((tenant, key) for key in _keys(message)):
                others = self._owners[key] if self._messages.get(key) == message else frozenset[Owner]()
                self._remove(key)
                self._messages[key], self._owners[key] = message, others | {Owner(tenant, session)}
                self._num_chars += _num_chars(message)
            while self._num_chars > LIMIT_CHARS:
                self._remove(next(iter(self._messages)))

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the messages of which all owners are gone."""
        with self._lock:
            for key, owners in list(self._owners.items()):
                self._owners[key] = frozenset(owner for owner in owners if not is_gone(owner))
                if not self._owners[key]:
                    self._remove(key)

    def restore(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> tuple[Mapping[str, Any], ...]:
        """The messages, with each field that repeats an answer as that answer was returned."""
        return tuple(self._restored(message, tenant) if message["role"] == "assistant" else message for message in messages)

    def missing_keys(self, messages: Sequence[Mapping[str, Any]], *, tenant: str) -> list[str]:
        """Keys of the assistant messages that are not in the memory."""
        keys = [next(_keys(message)) for message in messages if message["role"] == "assistant"]
        with self._lock:
            return [key for key in keys if (tenant, key) not in self._messages]

    def _restored(self, message: Mapping[str, Any], tenant: str) -> Mapping[str, Any]:
        with self._lock:
            stored = next((match for key in _keys(message) if (match := self._messages.get((tenant, key)))), None)
        if stored is None:
            return message
        texts = {name: stored[name] for name in TEXTS if name in stored and _is_same_text(stored[name], message.get(name))}
        calls = {"tool_calls": stored["tool_calls"]} if _are_same_calls(stored.get("tool_calls"), message.get("tool_calls")) else {}
        return {**message, **texts, **calls}

    def _remove(self, key: tuple[str, str]) -> None:
        if key in self._messages:
            self._num_chars -= _num_chars(self._messages.pop(key))
            del self._owners[key]


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

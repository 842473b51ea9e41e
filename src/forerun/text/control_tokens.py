"""What a client writes is text: a control token spelled out in a message is marked, so that it is not encoded as that token.

A rendered prompt no longer tells what came from the template and what from a message. So a noncharacter is put into every control token's
text before rendering; the tokenizer cuts there and drops it. Why, and what others do: docs/decisions/003-control-tokens-in-messages.md.
Knows nothing of templates or token ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from forerun.errors import BadRequestError
from forerun.values import Chat

NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # never assigned, valid in UTF-8


class ControlTokenEscaper:
    """Marks the texts of these control tokens wherever a client wrote them."""

    def __init__(self, control_tokens: Collection[str]) -> None:
        alternatives = "|".join(map(re.escape, sorted(control_tokens, key=len, reverse=True))) or "(?!)"
        self._written = re.compile(alternatives)
        self._first = re.compile(f"(?s)(?={alternatives})(.)")
        self._beginnings = tuple({text[:n] for text in control_tokens for n in range(1, len(text))})

    def escape(self, chat: Chat) -> tuple[Chat, str]:
        """The conversation, marked, and the mark: a character that is not in the conversation. Raises BadRequestError (all are)."""
        texts = list(_texts([*chat.messages, *chat.tools, chat.template_args]))
        free = (escape for escape in NONCHARACTERS if not any(escape in text for text in texts))
        escape = next(free, None)
        if escape is None:
            raise BadRequestError(
                "the messages hold every noncharacter from U+FDD0 to U+FDEF", param="messages", hint="leave one of them out"
            )
        if not any(self._written.search(text) or text.rstrip().endswith(self._beginnings) for text in texts):
            return chat, escape
        messages, tools = (tuple(self._escaped(each, escape) for each in values) for values in (chat.messages, chat.tools))
        return replace(chat, messages=messages, tools=tools, template_args=self._escaped(chat.template_args, escape)), escape

    def _escaped(self, value: Any, escape: str) -> Any:
        match value:
            case str():
                return self._broken(value, escape)
            case Mapping():
                return {self._broken(name, escape): self._escaped(each, escape) for name, each in value.items()}
            case list() | tuple():
                return [self._escaped(each, escape) for each in value]
        return value

    def _broken(self, text: str, escape: str) -> str:
        """Control tokens cut behind their first character; a beginning at the end too, which what is rendered next could complete."""
        if self._written.search(text):
            text = self._first.sub(rf"\1{escape}", text)
        stem = text.rstrip()
        return f"{stem}{escape}{text[len(stem) :]}" if stem.endswith(self._beginnings) else text


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, names of fields too."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from value
            for each in value.values():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)

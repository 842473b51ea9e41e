"""What a client writes is text: a control token spelled out in a message is escaped, so that it is not encoded as that token.

A rendered prompt does not show which text came from the template and which from a message. So a noncharacter, the escape character, is
inserted into every control token's text before rendering; the tokenizer splits there and drops it. The same is done to reasoning tags in
an assistant's texts, where templates look for them: reasoning has a field of its own. Why, and what other servers do:
docs/decisions/003-control-tokens-in-messages.md. Knows nothing of templates or token ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from operator import is_
from typing import Any

from forerun.errors import BadRequestError
from forerun.values import Chat

TEXTS = ("content", "reasoning_content")  # of an assistant message
NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # never assigned, valid in UTF-8


class ControlTokenEscaper:
    """Escapes the texts of these control tokens wherever a client wrote them, and reasoning tags in the texts of assistant messages."""

    def __init__(self, control_tokens: Collection[str], reasoning_tags: Collection[str] = ()) -> None:
        self._tag = re.compile("|".join(map(re.escape, reasoning_tags)) or "(?!)")
        alternatives = "|".join(map(re.escape, sorted(control_tokens, key=len, reverse=True))) or "(?!)"
        self._token = re.compile(alternatives)
        self._first_char = re.compile(f"(?s)(?={alternatives}).")
        self._prefixes = tuple({text[:n] for text in control_tokens for n in range(1, len(text))})

    def escape(self, chat: Chat) -> tuple[Chat, str]:
        """The escaped conversation, and the escape character, which it does not hold otherwise. Raises BadRequestError (it holds all)."""
        texts = list(_strings([*chat.messages, *chat.tools, chat.template_args]))
        free = (char for char in NONCHARACTERS if not any(char in text for text in texts))
        escape_char = next(free, None)
        if escape_char is None:
            raise BadRequestError(
                "the messages hold every noncharacter from U+FDD0 to U+FDEF", param="messages", hint="leave one of them out"
            )
        chat = self._without_tags(chat, escape_char)
        if not any(self._token.search(text) or text.rstrip().endswith(self._prefixes) for text in texts):
            return chat, escape_char
        messages, tools = (tuple(self._escape(each, escape_char) for each in values) for values in (chat.messages, chat.tools))
        template_args = self._escape(chat.template_args, escape_char)
        return replace(chat, messages=messages, tools=tools, template_args=template_args), escape_char

    def _without_tags(self, chat: Chat, escape_char: str) -> Chat:
        """The conversation with the tags in assistant messages split after their first character."""
        messages = tuple(self._without_tags_in(each, escape_char) if each["role"] == "assistant" else each for each in chat.messages)
        return chat if all(map(is_, messages, chat.messages)) else replace(chat, messages=messages)

    def _without_tags_in(self, message: Mapping[str, Any], escape_char: str) -> Mapping[str, Any]:
        tagged = {name: text for name in TEXTS if isinstance(text := message.get(name), str) and self._tag.search(text)}
        split = {name: self._tag.sub(lambda tag: tag[0][0] + escape_char + tag[0][1:], text) for name, text in tagged.items()}
        return {**message, **split} if split else message

    def _escape(self, value: Any, escape_char: str) -> Any:
        match value:
            case str():
                return self._escape_text(value, escape_char)
            case Mapping():
                return {self._escape_text(name, escape_char): self._escape(each, escape_char) for name, each in value.items()}
            case list() | tuple():
                return [self._escape(each, escape_char) for each in value]
        return value

    def _escape_text(self, text: str, escape_char: str) -> str:
        """Splits control tokens after their first character, and a prefix of one at the end, which the next text could complete."""
        if self._token.search(text):
            text = self._first_char.sub(lambda char: char[0] + escape_char, text)  # a function: between its calls other threads run
        stem = text.rstrip()
        return f"{stem}{escape_char}{text[len(stem) :]}" if stem.endswith(self._prefixes) else text


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, field names included."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from value
            for each in value.values():
                yield from _strings(each)
        case list() | tuple():
            for each in value:
                yield from _strings(each)

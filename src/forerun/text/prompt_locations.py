"""From a character of a rendered prompt to the part of the conversation: the system message, the tools, or a message by its index, and
which field of it.

Renders the conversation again, in parts and with fields changed, so it is used for misses only. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from forerun.text.partial_match import num_common
from forerun.text.template import Template
from forerun.values import Chat

REST = "after the messages"
TEXTS = ("content", "reasoning_content", "name")
QUESTION = {"role": "user", "content": ""}
PLACEHOLDER = "\U0001fffe"  # replaces a field: a noncharacter, which differs from any text


class PromptLocation(NamedTuple):
    """where: "system", "tools", "message 3 (user)" (from 0), or REST. field: its name in the chat dialect, "" for text of the template
    itself; for tools, the tool's name.
    """

    where: str
    field: str


class PromptLocator:
    """Locates characters in the rendered conversation. Renders nothing until `locate`. chat None: a prompt of tokens, without messages.
    escape_char: what the texts of the conversation are escaped with; the characters are counted without it.
    """

    def __init__(self, template: Template, chat: Chat | None, escape_char: str = "") -> None:
        self._template, self._chat, self._escape_char = template, chat, escape_char

    def locate(self, char: int, stored: str) -> PromptLocation:
        """The part that the character belongs to. stored: the text at this position in the stored conversation that is compared with."""
        if self._chat is None:
            return PromptLocation("", "")
        chat, text = self._chat, self._text(self._chat)
        if self._is_in_tools(chat, text, char):
            num = _fewest(text, char, len(chat.tools), lambda n: self._text(replace(chat, tools=chat.tools[:n])))
            return PromptLocation("tools", self._plain(_name_of_tool(chat.tools[min(num, len(chat.tools)) - 1])))
        num = _fewest(text, char, len(chat.messages), lambda n: self._rendered_prefix(chat, text, n))
        if num > len(chat.messages):
            return PromptLocation(REST, "")
        role = chat.messages[num - 1].get("role", "")
        where = "system" if num == 1 and role in ("system", "developer") else f"message {num - 1} ({role})"
        return PromptLocation(where, self._field(chat, num - 1, text, char, stored))

    def _text(self, chat: Chat) -> str:
        """The rendered conversation; "" where the template refuses it, as it may refuse the first messages alone."""
        return self._plain(self._template.attempt(chat, add_generation_prompt=False))

    def _plain(self, text: str) -> str:
        return text.replace(self._escape_char, "") if self._escape_char else text

    def _is_in_tools(self, chat: Chat, text: str, char: int) -> bool:
        if not chat.tools:
            return False
        start, end = _differing_span(text, self._text(replace(chat, tools=())))
        return start <= char < end

    def _rendered_prefix(self, chat: Chat, text: str, num: int) -> str:
        """The first `num` messages, rendered alone, or, where that is no prefix of the text, followed by a user message."""
        first = chat.messages[:num]
        alone = self._text(replace(chat, messages=first))
        return alone if text.startswith(alone) else self._text(replace(chat, messages=(*first, QUESTION)))

    def _field(self, chat: Chat, number: int, text: str, char: int, stored: str) -> str:
        """The field of a message that holds the character, the one that starts last if several do; or a field that the message lacks, if
        `stored` has it here. Text before all fields belongs to "role".
        """
        spans: list[tuple[int, int, str]] = []
        for field, changed in _with_fields_changed(chat.messages[number]):
            other = self._text(replace(chat, messages=(*chat.messages[:number], changed, *chat.messages[number + 1 :])))
            start, end = _differing_span(text, other)
            if other and start == char and start == end and stored.startswith(other[start : max(start, other.find(PLACEHOLDER))]):
                return field
            spans += [(start, end, field)] if other else []
        if self._starts_reasoning(stored) and not self._starts_reasoning(text[char:]):
            return "reasoning_content"
        if spans and char < min(start for start, _, _ in spans):
            return "role"
        return max((each for each in spans if each[0] <= char < each[1]), default=(0, 0, ""))[2]

    def _starts_reasoning(self, text: str) -> bool:
        """Whether the text starts with reasoning: a template may drop that of earlier turns."""
        tags = self._template.answer_format.reasoning
        return tags is not None and text.lstrip().startswith(tags.open)


def _with_fields_changed(message: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of each field that may be rendered, and the message with another value in it."""
    for field in TEXTS:
        if message.get(field) or (field, message.get("role")) == ("reasoning_content", "assistant"):
            yield field, {**message, field: PLACEHOLDER}
    calls = list(message.get("tool_calls") or ())
    for number, call in enumerate(calls):
        for field, other in (
            ("name", PLACEHOLDER),
            ("arguments", {PLACEHOLDER: PLACEHOLDER} if isinstance(call["function"]["arguments"], dict) else PLACEHOLDER),
        ):
            changed = {**call, "function": {**call["function"], field: other}}
            name = f"tool_calls[{number}].function.{field}"
            yield name, {**message, "tool_calls": [*calls[:number], changed, *calls[number + 1 :]]}


def _fewest(text: str, char: int, most: int, rendered: Callable[[int], str]) -> int:
    """The smallest number of messages, or tools, whose rendering agrees with the text beyond the character; `most` + 1 if none does."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if num_common(text, rendered(middle)) > char:
            high = middle
        else:
            low = middle + 1
    return low


def _name_of_tool(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", tool).get("name", ""))


def _differing_span(text: str, other: str) -> tuple[int, int]:
    """The span (start, stop) of the text that differs from the other."""
    start = num_common(text, other)
    return start, max(start, len(text) - num_common(text[::-1], other[::-1]))

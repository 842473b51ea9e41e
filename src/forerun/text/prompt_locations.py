"""Which part of a conversation a place in its rendered text belongs to: the system message, the tools, or a message by its number; and
which field of it.

Renders the conversation again, in parts and with fields changed, so it is asked only of prompts that missed. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from forerun.text.template import Template
from forerun.values import Chat

REST = "after the messages"
TEXTS = ("content", "reasoning_content", "name")
QUESTION = {"role": "user", "content": ""}
OTHER = "\U0001fffe"  # a noncharacter, in place of a field: whatever stands in a text, it is not this


class PromptLocation(NamedTuple):
    """where: "system", "tools", "message 3 (user)", counted from 0, or REST. field: of it, as the chat dialect names it; "" where what
    the template itself writes is meant. Of tools, the tool's name.
    """

    where: str
    field: str


class PromptLocator:
    """Places in the text of a conversation, of which nothing is rendered before it is asked for. chat None: of tokens without messages."""

    def __init__(self, template: Template, chat: Chat | None) -> None:
        self._template, self._chat = template, chat

    def locate(self, char: int, stored: str) -> PromptLocation:
        """The part that the character belongs to. stored: what stands there in the conversation that the prompt is compared with."""
        if self._chat is None:
            return PromptLocation("", "")
        chat, text = self._chat, self._text(self._chat)
        if self._is_in_tools(chat, text, char):
            num = _fewest(text, char, len(chat.tools), lambda n: self._text(replace(chat, tools=chat.tools[:n])))
            return PromptLocation("tools", _name_of_tool(chat.tools[min(num, len(chat.tools)) - 1]))
        num = _fewest(text, char, len(chat.messages), lambda n: self._beginning(chat, text, n))
        if num > len(chat.messages):
            return PromptLocation(REST, "")
        role = chat.messages[num - 1].get("role", "")
        where = "system" if num == 1 and role in ("system", "developer") else f"message {num - 1} ({role})"
        return PromptLocation(where, self._field(chat, num - 1, text, char, stored))

    def _text(self, chat: Chat) -> str:
        """The text of the conversation, or none where the template refuses it: it may not take the first messages of one alone."""
        return self._template.attempt(chat, add_generation_prompt=False)

    def _is_in_tools(self, chat: Chat, text: str, char: int) -> bool:
        if not chat.tools:
            return False
        start, end = _changed(text, self._text(replace(chat, tools=())))
        return start <= char < end

    def _beginning(self, chat: Chat, text: str, num: int) -> str:
        """What the first messages make of the text: alone, or with a question behind them where the template writes them otherwise then."""
        first = chat.messages[:num]
        alone = self._text(replace(chat, messages=first))
        return alone if text.startswith(alone) else self._text(replace(chat, messages=(*first, QUESTION)))

    def _field(self, chat: Chat, number: int, text: str, char: int, stored: str) -> str:
        """The field of a message: of those that the character lies in, the one that begins last; one that was left out, if it would stand
        here and `stored` has it. What stands before all of them says whose message it is.
        """
        found: list[tuple[int, int, str]] = []
        for field, changed in _with_fields_changed(chat.messages[number]):
            other = self._text(replace(chat, messages=(*chat.messages[:number], changed, *chat.messages[number + 1 :])))
            start, end = _changed(text, other)
            if other and start == char and start == end and stored.startswith(other[start : max(start, other.find(OTHER))]):
                return field
            found += [(start, end, field)] if other else []
        if self._thinks(stored) and not self._thinks(text[char:]):
            return "reasoning_content"
        if found and char < min(start for start, _, _ in found):
            return "role"
        return max((each for each in found if each[0] <= char < each[1]), default=(0, 0, ""))[2]

    def _thinks(self, text: str) -> bool:
        """Whether what stands there first is reasoning: a template may leave out that of earlier turns."""
        tags = self._template.answer_format.reasoning
        return tags is not None and text.lstrip().startswith(tags.open)


def _with_fields_changed(message: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each field that may be rendered, by its name, and the message with another value in it."""
    for field in TEXTS:
        if message.get(field) or (field, message.get("role")) == ("reasoning_content", "assistant"):
            yield field, {**message, field: OTHER}
    calls = list(message.get("tool_calls") or ())
    for number, call in enumerate(calls):
        for field, other in (("name", OTHER), ("arguments", {OTHER: OTHER} if isinstance(call["function"]["arguments"], dict) else OTHER)):
            changed = {**call, "function": {**call["function"], field: other}}
            name = f"tool_calls[{number}].function.{field}"
            yield name, {**message, "tool_calls": [*calls[:number], changed, *calls[number + 1 :]]}


def _fewest(text: str, char: int, most: int, written: Callable[[int], str]) -> int:
    """How many messages, or tools, it takes at least to write the text beyond the character; one more than `most` if all do not."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if num_common(text, written(middle)) > char:
            high = middle
        else:
            low = middle + 1
    return low


def _name_of_tool(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", tool).get("name", ""))


def _changed(text: str, other: str) -> tuple[int, int]:
    """Which part of the text, from the first to behind the last character, is another in the other."""
    start = num_common(text, other)
    return start, max(start, len(text) - num_common(text[::-1], other[::-1]))


def num_common(one: str, other: str) -> int:
    """How many characters two texts begin with alike: found by halving, since comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""Which part of a conversation a place in its rendered text belongs to: the system message, the tools, or a message by its number.

Renders the conversation again, in parts, so it is asked only of prompts that missed. Knows nothing of tokens.
"""

from __future__ import annotations

from dataclasses import replace

from forerun.text.template import Template
from forerun.values import Chat

REST = "after the messages"


class Places:
    """Places in the text of a conversation, of which nothing is rendered before it is asked for. chat None: of tokens without messages."""

    def __init__(self, template: Template, chat: Chat | None) -> None:
        self._template, self._chat = template, chat

    def of(self, char: int) -> str:
        """The part that the character belongs to: "system", "tools", "message 3 (user)", counted from 0, or REST."""
        if self._chat is None:
            return ""
        text = self._text(self._chat)
        if self._is_in_tools(self._chat, text, char):
            return "tools"
        num = self._num_messages_up_to(self._chat, text, char)
        if num > len(self._chat.messages):
            return REST
        role = self._chat.messages[num - 1].get("role", "")
        return "system" if num == 1 and role in ("system", "developer") else f"message {num - 1} ({role})"

    def _text(self, chat: Chat) -> str:
        """The text of the conversation, or none where the template refuses it: it may not take the first messages of one alone."""
        return self._template.attempt(chat, add_generation_prompt=False)

    def _is_in_tools(self, chat: Chat, text: str, char: int) -> bool:
        if not chat.tools:
            return False
        plain = self._text(replace(chat, tools=()))
        start, end = _num_common(text, plain), _num_common(text[::-1], plain[::-1])
        return start <= char < len(text) - end

    def _num_messages_up_to(self, chat: Chat, text: str, char: int) -> int:
        """How many messages it takes, at least, to write the text beyond the character; one more than there are if all do not."""
        low, high = 1, len(chat.messages) + 1
        while low < high:
            middle = (low + high) // 2
            if _num_common(text, self._text(replace(chat, messages=chat.messages[:middle]))) > char:
                high = middle
            else:
                low = middle + 1
        return low


def _num_common(one: str, other: str) -> int:
    """How many characters two texts begin with alike: found by halving, since comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

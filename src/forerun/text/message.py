"""The assistant message built from an answer's pieces, as in chat templates and OpenAI's chat dialect. Knows no tokens."""

from __future__ import annotations

from typing import Any

from forerun.text.reasoning import THINK
from forerun.values import CallArguments, CallEnd, CallStart, Content, Piece, Reasoning


def split_reasoning(content: str) -> tuple[str, str]:
    """(reasoning, content) of a text that begins with reasoning in tags, as some servers answer; ("", text) for any other."""
    reasoning, close, rest = content.lstrip().removeprefix(THINK.open).partition(THINK.close)
    if not (content.lstrip().startswith(THINK.open) and close):
        return "", content
    return reasoning.strip("\n"), rest.lstrip("\n")


class AssistantMessage:
    """`take` the pieces of one answer in order; `value` returns the message so far."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallStart] = []
        self._arguments: list[list[str]] = []

    def take(self, piece: Piece) -> None:
        """Add a piece."""
        match piece:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case CallStart():
                self._calls.append(piece)
                self._arguments.append([])
            case CallArguments(index, json):
                self._arguments[index].append(json)
            case CallEnd():
                pass

    def value(self) -> dict[str, Any]:
        """The message. content is None if there are only calls; reasoning_content and tool_calls are absent if empty."""
        calls = [self._call(start) for start in self._calls]
        message = {"role": "assistant", "content": "".join(self._content) or (None if calls else "")}
        reasoning = {"reasoning_content": "".join(self._reasoning)} if self._reasoning else {}
        return message | reasoning | ({"tool_calls": calls} if calls else {})

    def _call(self, start: CallStart) -> dict[str, Any]:
        function = {"name": start.name, "arguments": "".join(self._arguments[start.index])}
        return {"id": start.id, "type": "function", "function": function}

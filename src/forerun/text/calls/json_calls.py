"""Calls as JSON objects with name and arguments: each between tags (Hermes, Qwen 2.5 and 3), or bare at the start of the answer (Llama 3).

No schemas: the values are typed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.text.calls.arguments import JsonScanner, parse_object
from forerun.text.calls.buffer import STRING, Pieces, TextBuffer, content, content_until, match_tag
from forerun.text.calls.rules import Opening, RuleWriter, ToolSchema
from forerun.text.calls.tools import Tools
from forerun.values import CallArguments

HEADS = tuple(
    (*first, '"name"', ":", STRING, ",", key, ":", "{")
    for first in (("{",), ("{", '"type"', ":", '"function"', ","))
    for key in ('"arguments"', '"parameters"')
)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class Hermes:
    """OPEN, the object, CLOSE."""

    opens = (OPEN,)

    def openings(self, names: Sequence[str]) -> Iterator[Opening]:
        """The tag."""
        yield Opening(OPEN, OPEN)

    def call_rule(self, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
        """The object between line breaks, and the closing tag."""
        return f'"\\n"? {_object_rule(writer, tool, "arguments")} "\\n"? {writer.literal(CLOSE)}'

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""
        while lead := (yield from content_until(buffer, self.opens)):
            head = yield from match_tag(buffer, HEADS)
            if head is None:
                yield from self._odd_call(buffer, lead)
            else:
                yield from parse_call(buffer, head.length, head.groups[0], (CLOSE, OPEN))
                yield from self._close(buffer)

    def _close(self, buffer: TextBuffer) -> Pieces[None]:
        """Removes the brackets and the tag after the arguments; anything else there is content."""
        while CLOSE not in buffer.text and OPEN not in buffer.text and not buffer.is_ended:
            yield None
        starts = [start for tag in (OPEN, CLOSE) if (start := buffer.text.find(tag)) >= 0]
        between = buffer.take(min(starts, default=len(buffer.text)))
        yield from content(between.lstrip("} \n\t\r"))
        if buffer.text.startswith(CLOSE):
            buffer.take(len(CLOSE))

    def _odd_call(self, buffer: TextBuffer, lead: str) -> Pieces[None]:
        """A call that does not start with its name: parsed once its object has arrived in full. What is no call is content."""
        scan, length = JsonScanner(), 0
        while buffer.text.lstrip()[:1] in ("", "{") and not (scan.is_done or scan.is_broken or buffer.is_ended):
            length += scan.push(buffer.text[length:])[0]
            if not scan.is_done and not scan.is_broken:
                yield None
        call = _parsed(buffer.text[:length])
        if call is None:
            yield from content(lead)
            return
        buffer.take(length)
        yield buffer.start_call(call[0])
        yield CallArguments(buffer.num_calls - 1, call[1])
        yield buffer.end_call(is_complete=True)
        yield from self._close(buffer)


@dataclass(frozen=True, slots=True)
class Llama:
    """The object alone, at the start of the answer or after PYTHON_TAG; several with semicolons or line breaks between them."""

    opens = (PYTHON_TAG, "{")

    def openings(self, names: Sequence[str]) -> Iterator[Opening]:
        """PYTHON_TAG; and of a bare call all up to its arguments: without its name it may be JSON that is no call."""
        yield Opening(PYTHON_TAG, PYTHON_TAG)
        for name in names:
            yield Opening(_head(name, "parameters"), "{", is_first=True)

    def call_rule(self, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
        """The object, or the rest of it."""
        return _object_rule(writer, tool, "parameters", is_open=opened == "{")

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""
        first = [*HEADS, *((PYTHON_TAG, *head) for head in HEADS)]
        later = [*first, *((";", *head) for head in first)]
        while (head := (yield from match_tag(buffer, later if buffer.num_calls else first))) and head.groups[0].strip('"') in tools:
            yield from parse_call(buffer, head.length, head.groups[0], (PYTHON_TAG,))
            if bracket := (yield from match_tag(buffer, [("}",)])):
                buffer.take(bracket.length)
        yield from content_until(buffer, ())


def _head(name: str, key: str) -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": '


def _object_rule(writer: RuleWriter, tool: ToolSchema, key: str, *, is_open: bool = False) -> str:
    """A call as an object; is_open: its first bracket stands already."""
    if tool.input_grammar:
        writer.drop(("input",), "a grammar is not held within a string of JSON")
    return f"{writer.literal(_head(tool.name, key)[is_open:])} {writer.json(tool.arguments, ())} {writer.literal('}')}"


def parse_call(buffer: TextBuffer, head_length: int, name: str, ends: Sequence[str]) -> Pieces[None]:
    """A call whose text starts with a head of this length, the opening bracket of its arguments included."""
    buffer.text = "{" + buffer.text[head_length:]
    yield buffer.start_call(name.strip('"'))
    is_complete = yield from parse_object(buffer, ends)
    yield buffer.end_call(is_complete)


def _parsed(text: str) -> tuple[str, str] | None:
    """Name and arguments of a JSON call; None if it is not one."""
    try:
        call = json.loads(text, strict=False)
        arguments: Any = call.get("arguments", call.get("parameters", {}))
        arguments = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
        name = call["name"]
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(name, str) and isinstance(arguments, dict) else None

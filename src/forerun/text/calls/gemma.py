"""Gemma's calls: call:name{key:value}, with strings between quote tags and unquoted keys.

Gemma 4: https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4; FunctionGemma has other tags. No schemas: the values are typed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.text.calls.arguments import parse_rest
from forerun.text.calls.buffer import NAME, Pieces, TagPattern, TextBuffer, content, content_until, match_tag
from forerun.text.calls.gemma_rules import GemmaRules
from forerun.text.calls.rules import Opening, RuleWriter, ToolSchema
from forerun.text.calls.tools import Tools
from forerun.text.partial_match import partial_overlap
from forerun.values import CallArguments

WORD = re.compile(r"[^\s,:{}\[\]<]+")
LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
PLAIN = {"{": "{", "[": "[", "}": "}", "]": "]", ",": ", ", ":": ": "}
CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Gemma:
    """The tags around a call, and on either side of a string."""

    open: str
    close: str
    quote: str

    @property
    def opens(self) -> tuple[str, ...]:
        return (self.open,)

    def openings(self, names: Sequence[str]) -> Iterator[Opening]:
        """The tag."""
        yield Opening(self.open, self.open)

    def call_rule(self, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
        """The rest of a call, behind the tag."""
        arguments = GemmaRules(writer, tool, self.quote).arguments()
        return f"{writer.literal(f'call:{tool.name}')} {arguments} {writer.literal(self.close)}"

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""
        while lead := (yield from content_until(buffer, (self.open,))):
            head = yield from match_tag(buffer, [("call:", NAME, "{")])
            if head is None:
                yield from content(lead)
                continue
            buffer.take(head.length - 1)
            yield buffer.start_call(head.groups[0])
            is_complete = yield from self._object(buffer)
            yield buffer.end_call(is_complete)
            if ended := (yield from match_tag(buffer, [(self.close,)])):
                buffer.take(ended.length)

    def _object(self, buffer: TextBuffer) -> Pieces[bool]:
        """One object, as JSON. Returns whether it is whole."""
        index, before, open_brackets = buffer.num_calls - 1, "", [""]
        patterns: list[TagPattern] = [(self.quote,), *((tag,) for tag in PLAIN), (WORD,)]
        while match := (yield from match_tag(buffer, patterns)):
            token = buffer.take(match.length).strip()
            if token in CLOSING:
                open_brackets.append(CLOSING[token])
            elif token in CLOSING.values() and open_brackets.pop() != token:
                break
            if token == self.quote:
                if not (yield from self._string(buffer)):
                    return False
            else:
                is_key = open_brackets[-1] == "}" and before in ("{", ",")
                yield CallArguments(index, PLAIN.get(token) or (token if LITERAL.fullmatch(token) and not is_key else json.dumps(token)))
            if len(open_brackets) == 1:
                return True
            before = token
        yield from parse_rest(buffer, (self.close, self.open))
        return False

    def _string(self, buffer: TextBuffer) -> Pieces[bool]:
        """The rest of a string, up to its closing quote. Returns whether it ended."""
        index, is_ended = buffer.num_calls - 1, False
        yield CallArguments(index, '"')
        while not is_ended:
            quote = buffer.text.find(self.quote)
            is_ended = quote >= 0
            certain = quote if is_ended else len(buffer.text) - (0 if buffer.is_ended else partial_overlap(buffer.text, (self.quote,)))
            if text := buffer.take(certain):
                yield CallArguments(index, json.dumps(text, ensure_ascii=False)[1:-1])
            if buffer.is_ended and not is_ended:
                return False
            if not is_ended:
                yield None
        buffer.take(len(self.quote))
        yield CallArguments(index, '"')
        return True


GEMMA_4 = Gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Gemma("<start_function_call>", "<end_function_call>", "<escape>")

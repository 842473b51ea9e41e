"""Calls with tags around each argument (Qwen 3 Coder and 3.5; GLM 4.5 and later). Values are plain text, typed by the tools' schemas.

A value may hold such tags, and closing tags may be missing: see tagged_value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from forerun.text.calls.arguments import parse_rest
from forerun.text.calls.buffer import NAME, Pieces, TextBuffer, content, content_until, match_tag
from forerun.text.calls.rules import Opening, RuleWriter, ToolSchema
from forerun.text.calls.schema import ParameterType
from forerun.text.calls.tagged_rules import tagged_call
from forerun.text.calls.tagged_value import TaggedFormat, TaggedValue
from forerun.text.calls.tools import Tools, value_of
from forerun.values import CallArguments


class TaggedCalls(TaggedFormat):
    """Parses calls in a format."""

    def openings(self, names: Sequence[str]) -> Iterator[Opening]:
        """The tag that opens a call; where it has no tag of its own, with a tool's name."""
        yield Opening(self.opens[0], self.opens[0])
        yield from (Opening(f"{tag}{name}>", tag) for tag in self.opens[1:] for name in names)

    def call_rule(self, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
        """The rest of a call, behind `opened`."""
        return tagged_call(self, writer, tool, opened)

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""
        while lead := (yield from content_until(buffer, self.opens)):
            tag, patterns = next(each for each in self.heads if lead.endswith(each[0]))
            head = yield from match_tag(buffer, patterns)
            if head is None or (tag != self.opens[0] and head.groups[0] not in tools):
                yield from content(lead)
            else:
                last = str(patterns[head.index][-1])
                buffer.take(head.length - len(last) * self.is_followed)
                yield buffer.start_call(head.groups[0])
                is_complete = yield from self._arguments(buffer, head.groups[0], tools)
                yield buffer.end_call(is_complete)

    def _arguments(self, buffer: TextBuffer, name: str, tools: Tools) -> Pieces[bool]:
        """The arguments and the end of a call: its last tag, or after an argument another call. Returns whether it is whole."""
        index, given = buffer.num_calls - 1, set[str]()
        ends = [*self.ends]
        while match := (yield from match_tag(buffer, [(self.opening, NAME, *self.naming), *ends])):
            if match.index:
                buffer.take(match.length if match.index <= len(self.ends) else 0)
                yield CallArguments(index, "}" if given else "{}")
                return True
            buffer.take(match.length)
            yield CallArguments(index, f"{', ' if given else '{'}{_json(match.groups[0])}: ")
            given.add(match.groups[0])
            value = TaggedValue(self, tools, lambda other: other not in given and tools.declares(name, other))
            if not (yield from self._value(buffer, value, tools.type_of(name, match.groups[0]))):
                return False
            ends = [*self.ends, *((tag,) for tag in self.opens)]
        yield from parse_rest(buffer, [*(end[0] for end in self.ends), *self.opens])
        if ended := (yield from match_tag(buffer, self.ends)):
            buffer.take(ended.length)
        return False

    def _value(self, buffer: TextBuffer, value: TaggedValue, expected: ParameterType) -> Pieces[bool]:
        """One value: a string as it arrives, any other once it is whole. Returns whether it ended."""
        index, text, is_text = buffer.num_calls - 1, "", expected.is_text
        if is_text:
            yield CallArguments(index, '"')
        yield from self._skip_padding(buffer)
        while True:
            taken = value.take(buffer)
            if is_text and taken:
                yield CallArguments(index, _json(taken)[1:-1])
            text += "" if is_text else taken
            if value.is_closed or buffer.is_ended:
                break
            yield None
        if is_text:
            yield CallArguments(index, '"' if value.is_closed else "")
        else:
            yield CallArguments(index, _json(value_of(text, expected)) if value.is_closed else text)
        return value.is_closed

    def _skip_padding(self, buffer: TextBuffer) -> Pieces[None]:
        while self.is_padded and not buffer.text and not buffer.is_ended:
            yield None
        if self.is_padded and buffer.text.startswith("\n"):
            buffer.take(1)


QWEN = TaggedCalls(
    heads=(("<tool_call>", (("<function=", NAME, ">"),)), ("<function=", ((NAME, ">"),))),
    is_followed=False,
    opening="<parameter=",
    naming=(">",),
    closing="</parameter>",
    ends=(("</function>", "</tool_call>"), ("</tool_call>",), ("</function>",)),
    is_padded=True,
)
GLM = TaggedCalls(
    heads=(("<tool_call>", ((NAME, "<arg_key>"), (NAME, "</tool_call>"))),),
    is_followed=True,
    opening="<arg_key>",
    naming=("</arg_key>", "<arg_value>"),
    closing="</arg_value>",
    ends=(("</tool_call>",),),
    is_padded=False,
)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

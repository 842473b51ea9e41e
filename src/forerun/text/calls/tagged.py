"""Calls with tags around each argument (Qwen 3 Coder and 3.5; GLM 4.5 and later). Values are plain text, typed by the tools' schemas.

A value ends at its closing tag only if another argument or the end of the call follows, so that it may contain such tags.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from forerun.text.calls.buffer import NAME, Pieces, TagPattern, TextBuffer, content, content_until, match_tag
from forerun.text.calls.tools import Tools, Types, value_of
from forerun.text.partial_match import partial_overlap
from forerun.values import CallArguments

TEXT: Types = frozenset(["string"])


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """Tags of a format.

    heads: the tag that opens a call (after any but the first the name must be a tool's), and patterns of what follows up to the name.
    is_followed: the last tag of a head is not part of it. opening: opens an argument. naming: between its name and value. closing: after a
    value. ends: tags that end a call. is_padded: a line break stands on either side of a value.
    """

    heads: tuple[tuple[str, tuple[TagPattern, ...]], ...]
    is_followed: bool
    opening: str
    naming: tuple[str, ...]
    closing: str
    ends: tuple[tuple[str, ...], ...]
    is_padded: bool

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""
        opens = tuple(tag for tag, _ in self.heads)
        while lead := (yield from content_until(buffer, opens)):
            tag, patterns = next(each for each in self.heads if lead.endswith(each[0]))
            head = yield from match_tag(buffer, patterns)
            if head is None or (tag != opens[0] and head.groups[0] not in tools):
                yield from content(lead)
            else:
                last = str(patterns[head.index][-1])
                buffer.take(head.length - len(last) * self.is_followed)
                yield buffer.start_call(head.groups[0])
                is_complete = yield from self._arguments(buffer, head.groups[0], tools)
                yield buffer.end_call(is_complete)

    def _arguments(self, buffer: TextBuffer, name: str, tools: Tools) -> Pieces[bool]:
        index, separator = buffer.num_calls - 1, "{"
        while match := (yield from match_tag(buffer, ((self.opening, NAME, *self.naming), *self.ends))):
            buffer.take(match.length)
            if match.index:
                yield CallArguments(index, "{}" if separator == "{" else "}")
                return True
            yield CallArguments(index, f"{separator}{_json(match.groups[0])}: ")
            if not (yield from self._value(buffer, tools.types(name, match.groups[0]))):
                return False
            separator = ", "
        yield from self._rest(buffer)
        return False

    def _value(self, buffer: TextBuffer, types: Types) -> Pieces[bool]:
        """One value: a string as it arrives, any other once it is whole. Returns whether it ended."""
        index, text, is_text = buffer.num_calls - 1, "", types == TEXT
        if is_text:
            yield CallArguments(index, '"')
        yield from self._skip_padding(buffer)
        while True:
            length, is_certain = self._value_length(buffer.text, buffer.is_ended)
            if is_text and length:
                yield CallArguments(index, _json(buffer.take(length))[1:-1])
            text += "" if is_text else buffer.take(length)
            if is_certain or buffer.is_ended:
                break
            yield None
        if is_certain:
            buffer.take(buffer.text.index(self.closing) + len(self.closing))
        yield CallArguments(index, ('"' if is_certain else "") if is_text else _json(value_of(text, types)) if is_certain else text)
        return is_certain

    def _skip_padding(self, buffer: TextBuffer) -> Pieces[None]:
        while self.is_padded and not buffer.text and not buffer.is_ended:
            yield None
        if self.is_padded and buffer.text.startswith("\n"):
            buffer.take(1)

    def _value_length(self, text: str, is_ended: bool) -> tuple[int, bool]:
        """The length of the value and True if it ends in this text; else how many characters certainly belong to it, and False."""
        follows, start = (self.opening, *(end[0] for end in self.ends)), text.find(self.closing)
        while start >= 0:
            rest = text[start + len(self.closing) :].lstrip()
            if rest.startswith(follows):
                return start - self._padding(text[:start]), True
            if any(each.startswith(rest) for each in follows):
                return start - self._padding(text[:start]), is_ended
            start = text.find(self.closing, start + 1)
        certain = 0 if is_ended else partial_overlap(text, (self.closing,))
        before = text[: len(text) - certain]
        return len(before) - (0 if is_ended else self._padding(before)), False

    def _padding(self, text: str) -> int:
        return int(self.is_padded and text.endswith("\n"))

    def _rest(self, buffer: TextBuffer) -> Pieces[None]:
        """The rest of a malformed call, as arguments, so that nothing is lost."""
        end = self.ends[-1][0]
        while end not in buffer.text and not buffer.is_ended:
            yield None
        start = buffer.text.find(end)
        rest = buffer.take(start if start >= 0 else len(buffer.text))
        if rest.strip():
            yield CallArguments(buffer.num_calls - 1, rest)
        if ended := (yield from match_tag(buffer, self.ends)):
            buffer.take(ended.length)


QWEN = TaggedCalls(
    heads=(("<tool_call>", (("<function=", NAME, ">"),)), ("<function=", ((NAME, ">"),))),
    is_followed=False,
    opening="<parameter=",
    naming=(">",),
    closing="</parameter>",
    ends=(("</function>", "</tool_call>"), ("</function>",)),
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

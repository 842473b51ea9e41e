"""Calls with tags around each argument (Qwen 3 Coder and 3.5; GLM 4.5 and later). Values are plain text: the tools' schemas type them.

A value ends at its closing tag only if another argument or the end of the call follows, so that it may hold such tags itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from forerun.text.calls.feed import NAME, Feed, Shape, Steps, content, content_until, find
from forerun.text.calls.tools import Tools, Types, value_of
from forerun.text.partial_match import partial_overlap
from forerun.values import CallArguments

TEXT: Types = frozenset(["string"])


@dataclass(frozen=True, slots=True)
class Tagged:
    """A way of writing.

    heads: what begins a call (the first is the usual one; after any other the name must be a tool's), and how it goes on up to the name.
    is_followed: the last mark of a head is not of the head. opening: what begins an argument; naming: the marks between its name and its
    value; closing: what stands behind the value. ends: what ends a call. is_padded: a line break stands on either side of a value.
    """

    heads: tuple[tuple[str, tuple[Shape, ...]], ...]
    is_followed: bool
    opening: str
    naming: tuple[str, ...]
    closing: str
    ends: tuple[tuple[str, ...], ...]
    is_padded: bool

    def read(self, feed: Feed, tools: Tools) -> Steps[None]:
        """The pieces of an answer's content and calls."""
        opens = tuple(opened for opened, _ in self.heads)
        while lead := (yield from content_until(feed, opens)):
            opened, shapes = next(each for each in self.heads if lead.endswith(each[0]))
            head = yield from find(feed, shapes)
            if head is None or (opened != opens[0] and head.matched[0] not in tools):
                yield from content(lead)
            else:
                last = str(shapes[head.which][-1])
                feed.take(head.length - len(last) * self.is_followed)
                yield feed.start_call(head.matched[0])
                is_complete = yield from self._arguments(feed, head.matched[0], tools)
                yield feed.end_call(is_complete)

    def _arguments(self, feed: Feed, name: str, tools: Tools) -> Steps[bool]:
        index, written = feed.num_calls - 1, "{"
        while found := (yield from find(feed, ((self.opening, NAME, *self.naming), *self.ends))):
            feed.take(found.length)
            if found.which:
                yield CallArguments(index, "{}" if written == "{" else "}")
                return True
            yield CallArguments(index, f"{written}{_json(found.matched[0])}: ")
            if not (yield from self._value(feed, tools.types(name, found.matched[0]))):
                return False
            written = ", "
        yield from self._rest(feed)
        return False

    def _value(self, feed: Feed, types: Types) -> Steps[bool]:
        """One value, a string as it comes, any other once it is whole; whether it ended."""
        index, text, is_text = feed.num_calls - 1, "", types == TEXT
        if is_text:
            yield CallArguments(index, '"')
        yield from self._skip_padding(feed)
        while True:
            length, is_certain = self._value_length(feed.text, feed.is_ended)
            if is_text and length:
                yield CallArguments(index, _json(feed.take(length))[1:-1])
            text += "" if is_text else feed.take(length)
            if is_certain or feed.is_ended:
                break
            yield None
        if is_certain:
            feed.take(feed.text.index(self.closing) + len(self.closing))
        yield CallArguments(index, ('"' if is_certain else "") if is_text else _json(value_of(text, types)) if is_certain else text)
        return is_certain

    def _skip_padding(self, feed: Feed) -> Steps[None]:
        while self.is_padded and not feed.text and not feed.is_ended:
            yield None
        if self.is_padded and feed.text.startswith("\n"):
            feed.take(1)

    def _value_length(self, text: str, is_ended: bool) -> tuple[int, bool]:
        """Length of the value, and True, if it ends in this text; else how much of the text is certain to belong to it, and False."""
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

    def _rest(self, feed: Feed) -> Steps[None]:
        """What a malformed call still has, so that nothing is lost."""
        end = self.ends[-1][0]
        while end not in feed.text and not feed.is_ended:
            yield None
        start = feed.text.find(end)
        rest = feed.take(start if start >= 0 else len(feed.text))
        if rest.strip():
            yield CallArguments(feed.num_calls - 1, rest)
        if ended := (yield from find(feed, self.ends)):
            feed.take(ended.length)


QWEN = Tagged(
    heads=(("<tool_call>", (("<function=", NAME, ">"),)), ("<function=", ((NAME, ">"),))),
    is_followed=False,
    opening="<parameter=",
    naming=(">",),
    closing="</parameter>",
    ends=(("</function>", "</tool_call>"), ("</function>",)),
    is_padded=True,
)
GLM = Tagged(
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

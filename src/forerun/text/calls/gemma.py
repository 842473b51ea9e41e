"""Calls as Gemma writes them: call:name{key:value}, with strings between marks of their own, and keys that have none.

Gemma 4: https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4; FunctionGemma has the same with other marks. Knows nothing of
schemas: the model has typed the values itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from forerun.text.calls.arguments import read_rest
from forerun.text.calls.feed import NAME, Feed, Shape, Steps, content, content_until, find
from forerun.text.calls.tools import Tools
from forerun.text.partial_match import partial_overlap
from forerun.values import CallArguments

WORD = re.compile(r"[^\s,:{}\[\]<]+")
LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
PLAIN = {"{": "{", "[": "[", "}": "}", "]": "]", ",": ", ", ":": ": "}
CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Gemma:
    """The marks around a call, and on either side of a string."""

    open: str
    close: str
    quote: str

    def read(self, feed: Feed, tools: Tools) -> Steps[None]:
        """The pieces of an answer's content and calls."""
        while lead := (yield from content_until(feed, (self.open,))):
            head = yield from find(feed, [("call:", NAME, "{")])
            if head is None:
                yield from content(lead)
                continue
            feed.take(head.length - 1)
            yield feed.start_call(head.matched[0])
            is_complete = yield from self._object(feed)
            yield feed.end_call(is_complete)
            if ended := (yield from find(feed, [(self.close,)])):
                feed.take(ended.length)

    def _object(self, feed: Feed) -> Steps[bool]:
        """One object, written as JSON; whether it is whole."""
        index, before, open_brackets = feed.num_calls - 1, "", [""]
        shapes: list[Shape] = [(self.quote,), *((tag,) for tag in PLAIN), (WORD,)]
        while found := (yield from find(feed, shapes)):
            token = feed.take(found.length).strip()
            if token in CLOSING:
                open_brackets.append(CLOSING[token])
            elif token in CLOSING.values() and open_brackets.pop() != token:
                break
            if token == self.quote:
                if not (yield from self._string(feed)):
                    return False
            else:
                is_key = open_brackets[-1] == "}" and before in ("{", ",")
                yield CallArguments(index, PLAIN.get(token) or (token if LITERAL.fullmatch(token) and not is_key else json.dumps(token)))
            if len(open_brackets) == 1:
                return True
            before = token
        yield from read_rest(feed, self.close)
        return False

    def _string(self, feed: Feed) -> Steps[bool]:
        """The rest of a string, up to its mark; whether it ended."""
        index, is_ended = feed.num_calls - 1, False
        yield CallArguments(index, '"')
        while not is_ended:
            place = feed.text.find(self.quote)
            is_ended = place >= 0
            certain = place if is_ended else len(feed.text) - (0 if feed.is_ended else partial_overlap(feed.text, (self.quote,)))
            if text := feed.take(certain):
                yield CallArguments(index, json.dumps(text, ensure_ascii=False)[1:-1])
            if feed.is_ended and not is_ended:
                return False
            if not is_ended:
                yield None
        feed.take(len(self.quote))
        yield CallArguments(index, '"')
        return True


GEMMA_4 = Gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Gemma("<start_function_call>", "<end_function_call>", "<escape>")

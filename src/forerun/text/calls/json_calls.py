"""Calls written as a JSON object with name and arguments: each between tags (Hermes, Qwen 2.5 and 3), or bare at the beginning (Llama 3).

Knows nothing of schemas: the model has typed the values itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from forerun.text.calls.arguments import read_object
from forerun.text.calls.feed import STRING, Feed, Steps, content, content_until, find
from forerun.text.calls.tools import Tools
from forerun.values import CallArguments

HEADS = tuple(
    (*first, '"name"', ":", STRING, ",", key, ":", "{")
    for first in (("{",), ("{", '"type"', ":", '"function"', ","))
    for key in ('"arguments"', '"parameters"')
)


@dataclass(frozen=True, slots=True)
class Hermes:
    """<tool_call>, the object, </tool_call>."""

    open: str = "<tool_call>"
    close: str = "</tool_call>"

    def read(self, feed: Feed, tools: Tools) -> Steps[None]:
        """The pieces of an answer's content and calls."""
        while lead := (yield from content_until(feed, (self.open,))):
            head = yield from find(feed, HEADS)
            if head is None:
                yield from self._odd_call(feed, lead)
            else:
                yield from read_call(feed, head.length, head.matched[0], self.close)
                yield from self._close(feed)

    def _close(self, feed: Feed) -> Steps[None]:
        """Read the brackets and the tag after the arguments; what stands there besides is content."""
        while self.close not in feed.text and self.open not in feed.text and not feed.is_ended:
            yield None
        places = [place for tag in (self.open, self.close) if (place := feed.text.find(tag)) >= 0]
        between = feed.take(min(places, default=len(feed.text)))
        if between.strip("} \n\t\r"):
            yield from content(between)
        if feed.text.startswith(self.close):
            feed.take(len(self.close))

    def _odd_call(self, feed: Feed, lead: str) -> Steps[None]:
        """A call that does not begin with its name: read once it is here in full. What is no call is content."""
        while self.close not in feed.text and not feed.is_ended:
            yield None
        end = feed.text.find(self.close)
        text = feed.take(end if end >= 0 else len(feed.text))
        called = _called(text)
        if called is None:
            yield from content(lead + text + feed.take(len(self.close)))
        else:
            yield feed.start_call(called[0])
            yield CallArguments(feed.num_calls - 1, called[1])
            yield feed.end_call(is_complete=True)
            feed.take(len(self.close))


@dataclass(frozen=True, slots=True)
class Llama:
    """The object alone, as the first of the answer or after <|python_tag|>; several with semicolons or line breaks between them."""

    tag: str = "<|python_tag|>"

    def read(self, feed: Feed, tools: Tools) -> Steps[None]:
        """The pieces of an answer's content and calls."""
        first = [*HEADS, *((self.tag, *head) for head in HEADS)]
        later = [*first, *((";", *head) for head in first)]
        while (head := (yield from find(feed, later if feed.num_calls else first))) and head.matched[0].strip('"') in tools:
            yield from read_call(feed, head.length, head.matched[0], self.tag)
            if bracket := (yield from find(feed, [("}",)])):
                feed.take(bracket.length)
        yield from content_until(feed, ())


def read_call(feed: Feed, head_length: int, name: str, end: str) -> Steps[None]:
    """A call whose text begins with a head of this length, the bracket of its arguments included."""
    feed.text = "{" + feed.text[head_length:]
    yield feed.start_call(name.strip('"'))
    is_complete = yield from read_object(feed, end)
    yield feed.end_call(is_complete)


def _called(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call in JSON; None if it is none."""
    try:
        call = json.loads(text, strict=False)
        arguments: Any = call.get("arguments", call.get("parameters", {}))
        arguments = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
        name = call["name"]
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(name, str) and isinstance(arguments, dict) else None

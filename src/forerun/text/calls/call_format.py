"""What all call formats have in common: the protocol, and that a complete call's arguments are JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from forerun.text.calls.buffer import Pieces, TextBuffer
from forerun.text.calls.rules import Opening, RuleWriter, ToolSchema
from forerun.text.calls.tools import Tools
from forerun.values import CallArguments, CallEnd, CallStart


class CallFormat(Protocol):
    """How a model writes tool calls, for parsers and for grammars."""

    @property
    def opens(self) -> tuple[str, ...]:
        """What a call may start with."""

    def openings(self, names: Sequence[str]) -> Iterator[Opening]:
        """The texts that open a call of one of these tools."""

    def call_rule(self, writer: RuleWriter, tool: ToolSchema, opened: str) -> str:
        """The rest of a call of the tool, behind `opened`, one of `opens`: what `parse` takes for a complete call, and not a prefix of
        another such text.
        """

    def parse(self, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
        """The pieces of an answer's content and calls."""


def parse_calls(call_format: CallFormat, buffer: TextBuffer, tools: Tools) -> Pieces[None]:
    """The pieces of an answer's content and calls. Only calls whose arguments are JSON are complete."""
    arguments = ""
    for piece in call_format.parse(buffer, tools):
        match piece:
            case CallStart():
                arguments = ""
            case CallArguments(_, text):
                arguments += text
            case CallEnd(is_complete=True):
                piece = replace(piece, is_complete=_is_json(arguments))
        yield piece


def _is_json(text: str) -> bool:
    """Brackets may match around what is not JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

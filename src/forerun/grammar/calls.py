"""Grammars of the calls that an answer makes. The call formats write their own rules; this puts them together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from forerun.errors import BadRequestError
from forerun.grammar.lark import Lark, converted
from forerun.grammar.program import GrammarError, Program, Programs
from forerun.grammar.schema import check_size, reason, written
from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.rules import ToolSchema
from forerun.text.calls.tools import Tools
from forerun.values import CallRule, OutputFormat

Written = Callable[[Lark], str]
ANY = {"type": "object"}
MOST_ENTRIES_OF_TOOLS = 6000


class CallGrammars:
    """The calls of a request's tools in a format. names: of the tools that may be called."""

    def __init__(self, programs: Programs, call_format: CallFormat, tools: Tools, rule: CallRule) -> None:
        self._programs, self._format, self._rule = programs, call_format, rule
        self.names = [name for name in tools.parameters if rule.allowed is None or name in rule.allowed]
        self._num_entries = 0
        self._parameters = {name: self._parameters_of(name, tools.parameters[name]) for name in self.names}

    def after(self, opened: str) -> tuple[Program, tuple[str, ...]]:
        """The rest of a call behind the tag that opens it; and what is not enforced."""
        return self.compile(lambda lark: self._any_call(lark, opened))

    def calls(self, lark: Lark) -> str:
        """One call, or several where the rule allows them."""
        opened = self._format.opens[0] if self._format.opens[0] in lark.specials or "{" not in self._format.opens else "{"
        call = lark.rule(f"{lark.literal(opened)} {self._any_call(lark, opened)}")
        return f"{call} ( /\\n{{0,2}}/ {call} )*" if self._rule.is_parallel else call

    def compile(self, write: Written) -> tuple[Program, tuple[str, ...]]:
        """The program of what is written, and what of its schemas it does not hold. Raises BadRequestError.

        What is not supported is looked for only if there is such a thing: a request has some hundred schemas, and few have faults. An
        agent sends the same tools again, so what was found is remembered.
        """
        lark = Lark(self._programs.vocabulary.specials, False, "tools")
        text = lark.written(write(lark))
        key = (text, *sorted(self._rule.strict))
        if (known := self._programs.held.get(key)) is None:
            known = self._programs.held.put(key, self._held(lark, text, write))
        return known

    def _held(self, lark: Lark, text: str, write: Written) -> tuple[Program, tuple[str, ...]]:
        try:
            program = self._programs.compile(text)
            if not program.warnings:
                return program, tuple(dict.fromkeys(lark.unenforced))
        except GrammarError:
            pass  # the next attempt names what is at fault
        lark = Lark(self._programs.vocabulary.specials, True, "tools")
        try:
            program = self._programs.compile(lark.written(write(lark)))
        except GrammarError as error:
            raise BadRequestError(f"tools cannot be enforced: {reason(str(error))}", param="tools") from error
        return program, tuple(dict.fromkeys(lark.unenforced))

    def _any_call(self, lark: Lark, opened: str) -> str:
        return lark.rule(" | ".join(lark.rule(self._call(lark, name, opened)) for name in self.names))

    def _call(self, lark: Lark, name: str, opened: str) -> str:
        lark.path, lark.is_strict = (name, "parameters"), name in self._rule.strict
        held = self._rule.inputs.get(name)
        grammar = converted(held) if held and held.kind in ("lark", "gbnf") else ""
        return self._format.call_rule(lark, ToolSchema(name, self._parameters[name], grammar), opened)

    def _parameters_of(self, name: str, declared: Any) -> Mapping[str, Any]:
        if name in self._rule.inputs:
            return {"type": "object", "properties": {"input": _input(self._rule.inputs[name])}, "required": ["input"]}
        if not isinstance(declared, Mapping):
            return ANY
        self._num_entries += check_size(declared, written(("tools", name, "parameters")))
        if self._num_entries > MOST_ENTRIES_OF_TOOLS:
            message = f"tools have {self._num_entries:,} parameters and constants in all: at most {MOST_ENTRIES_OF_TOOLS:,} can be held"
            raise BadRequestError(message, param="tools")
        return declared


def _input(output: OutputFormat) -> dict[str, Any]:
    """The schema of a custom tool's argument."""
    match output.kind:
        case "regex":
            return {"type": "string", "pattern": f"^({output.definition})$"}
        case "choice":
            return {"type": "string", "enum": json.loads(output.definition)}
    return {"type": "string"}

"""From a request and its prompt to the grammar of its answer. Knows no dialect: errors name the request's fields as the job does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from threading import Lock

from forerun.errors import BadRequestError
from forerun.grammar.answer_matcher import AnswerMatcher
from forerun.grammar.calls import CallGrammars
from forerun.grammar.lark import choice, converted, slashed
from forerun.grammar.matcher import Matcher
from forerun.grammar.plan import Plan, ReasoningRule, Trigger
from forerun.grammar.program import GrammarError, Program, Programs
from forerun.grammar.schema import enforceable, read_schema, reason
from forerun.grammar.vocabulary import Vocabulary
from forerun.text.calls.call_format import CallFormat
from forerun.text.prompt import Prompt
from forerun.text.tokenizer import Tokenizer
from forerun.values import CallRule, Job, OutputFormat

SPACE = r"/[ \n]{0,4}/"  # that a model writes before what is asked for


@dataclass(frozen=True, slots=True)
class Grammar:
    """The rules for one answer. unenforced: what of the request's schemas they do not hold."""

    plan: Plan
    unenforced: tuple[str, ...] = ()

    def matcher(self) -> Matcher:
        """The state of an answer that has not begun."""
        return AnswerMatcher(self.plan)


class Grammars:
    """Compiles the grammars of one model. vocab: rows of its output.

    `compile` may be called from any threads but the one that decodes: a hostile schema takes up to a second, and the first call builds the
    vocabulary, about a second per 100,000 tokens; `load` does that beforehand.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab, self._lock = tokenizer, vocab, Lock()
        self._programs: Programs | None = None

    def load(self) -> None:
        """Build the vocabulary now."""
        self._loaded()

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens, built if they are not yet."""
        return self._loaded().vocabulary

    def compile(self, job: Job, prompt: Prompt) -> Grammar | None:
        """The grammar of the job's answer to this prompt; None if anything may be said. Raises BadRequestError, naming what is refused."""
        call_format = prompt.answer_format.calls if prompt.tools else None
        holds_calls = call_format is not None and (job.calls.is_enforced or job.calls.is_required or job.output is not None)
        if job.calls.is_required and not holds_calls:
            raise BadRequestError("a call is required, but the model's template, or the request, has no tools", param="tool_choice")
        if job.output is None and job.reasoning_tokens is None and not holds_calls:
            return None
        programs = self._loaded()
        calls = CallGrammars(programs, call_format, prompt.tools, job.calls) if call_format and holds_calls else None
        if job.calls.is_required and not (calls and calls.names):
            raise BadRequestError("a call is required, but no tool may be called", param="tool_choice")
        body, unenforced = self._body(programs, job, calls)
        triggers, dropped = _triggers(calls, call_format) if calls and call_format and body is None else ((), ())
        reasoning = _reasoning(programs.vocabulary, job.reasoning_tokens, prompt)
        opens = tuple(each.encode() for each in call_format.opens if each != "{") if call_format else ()
        plan = Plan(programs.vocabulary, reasoning, body, triggers, opens, _num_calls(job.calls))
        return Grammar(plan, tuple(dict.fromkeys([*unenforced, *dropped])))

    def _body(self, programs: Programs, job: Job, calls: CallGrammars | None) -> tuple[Program | None, tuple[str, ...]]:
        """What follows the reasoning, None for free text; and what of it is not enforced."""
        if calls and job.calls.is_required:
            return calls.compile(lambda lark: f"{lark.define('SPACE', SPACE)} {calls.calls(lark)}")
        if job.output is None:
            return None, ()
        if calls is None or not calls.names:
            return _format(programs, job.output)
        rule, dropped = _json_rule(job.output)
        program, unenforced = calls.compile(lambda lark: f"{lark.define('SPACE', SPACE)} ( {lark.rule(rule)} | {calls.calls(lark)} )")
        return program, (*dropped, *unenforced)

    def _loaded(self) -> Programs:
        with self._lock:
            self._programs = self._programs or Programs(Vocabulary(self._tokenizer, self._vocab))
            return self._programs


def _reasoning(vocabulary: Vocabulary, budget_tokens: int | None, prompt: Prompt) -> ReasoningRule | None:
    tags = prompt.answer_format.reasoning
    if tags is None or (not prompt.opens_reasoning and prompt.text.rstrip().endswith(tags.close)):
        return None
    open_ids = vocabulary.encode(tags.open)
    closing = vocabulary.encode(f"\n{tags.close}"), vocabulary.encode(tags.close)
    may_open = not prompt.opens_reasoning and vocabulary.is_special(open_ids[0])
    return ReasoningRule(tags.open.encode(), tags.close.encode(), prompt.opens_reasoning, may_open, open_ids, budget_tokens, closing)


def _num_calls(rule: CallRule) -> int | None:
    if rule.allowed is not None and not rule.allowed:
        return 0
    return None if rule.is_parallel else 1


def _triggers(calls: CallGrammars, call_format: CallFormat) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
    """The calls that free text may open, and what of their schemas is not enforced."""
    if not calls.names:
        return (), ()
    openings = list(call_format.openings(calls.names))
    programs = {opened: calls.after(opened) for opened in dict.fromkeys(each.open for each in openings)}
    triggers = (
        Trigger(each.text.encode(), programs[each.open][0], each.text[len(each.open) :].encode(), each.is_first) for each in openings
    )
    return tuple(triggers), tuple(each for _, dropped in programs.values() for each in dropped)


def _format(programs: Programs, output: OutputFormat) -> tuple[Program, tuple[str, ...]]:
    """The program of a format, and what it does not hold."""
    if output.kind in ("lark", "gbnf"):
        return _compile(programs, converted(output), output.param), ()
    rule, dropped = _json_rule(output)
    if "$ref" in rule:  # one that refers to itself alone has no values, which white space before it would hide
        _compile(programs, f"start: {rule}", output.param)
    space = f"SPACE {rule}\nSPACE: {SPACE}" if output.kind.startswith("json") else rule
    return _compile(programs, f"start: {space}", output.param), dropped


def _json_rule(output: OutputFormat) -> tuple[str, tuple[str, ...]]:
    """A rule's body for a format."""
    match output.kind:
        case "regex":
            return f"/{slashed(output.definition)}/", ()
        case "choice":
            return choice(output.definition), ()
        case "json_object":
            schema = enforceable({"type": "object"}, is_strict=True, param=output.param)
        case "json_schema":
            schema = enforceable(read_schema(output.definition, output.param), is_strict=output.is_strict, param=output.param)
        case _:
            raise BadRequestError(f"{output.param}: a {output.kind} grammar does not go with tools", param=output.param)
    return f"%json {json.dumps(schema.schema)}", schema.dropped


def _compile(programs: Programs, lark: str, param: str) -> Program:
    try:
        return programs.compile(lark)
    except GrammarError as error:
        raise BadRequestError(f"{param} cannot be enforced: {reason(str(error))}", param=param) from error

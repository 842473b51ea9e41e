"""From a request and its prompt to the grammar of its answer. Knows no dialect: errors name the request's fields as the job does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from threading import Lock

from llguidance.gbnf_to_lark import any_to_lark

from forerun.errors import BadRequestError
from forerun.grammar.answer_matcher import AnswerMatcher
from forerun.grammar.matcher import Matcher
from forerun.grammar.plan import Plan, ReasoningRule
from forerun.grammar.program import GrammarError, Program, Programs
from forerun.grammar.schema import enforceable, read_schema, reason
from forerun.grammar.vocabulary import Vocabulary
from forerun.text.prompt import Prompt
from forerun.text.tokenizer import Tokenizer
from forerun.values import Job, OutputFormat

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

    def compile(self, job: Job, prompt: Prompt) -> Grammar | None:
        """The grammar of the job's answer to this prompt; None if anything may be said. Raises BadRequestError, naming what is refused."""
        if job.output is None and job.reasoning_tokens is None:
            return None
        programs = self._loaded()
        body, unenforced = _body(programs, job.output) if job.output else (None, ())
        reasoning = _reasoning(programs.vocabulary, job.reasoning_tokens, prompt)
        return Grammar(Plan(programs.vocabulary, reasoning, body, (), (), None), unenforced)

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


def _body(programs: Programs, output: OutputFormat) -> tuple[Program, tuple[str, ...]]:
    """The program of a format, and what it does not hold."""
    match output.kind:
        case "json_object":
            schema = enforceable({"type": "object"}, is_strict=True, param=output.param)
        case "json_schema":
            schema = enforceable(read_schema(output.definition, output.param), is_strict=output.is_strict, param=output.param)
        case _:
            return _compile(programs, _lark(output), output.param), ()
    return _compile(programs, f"start: SPACE json\nSPACE: {SPACE}\njson: %json {json.dumps(schema.schema)}", output.param), schema.dropped


def _lark(output: OutputFormat) -> str:
    """The grammar of a format that is no JSON schema."""
    match output.kind:
        case "regex":
            return f"start: /{output.definition.replace('/', chr(92) + '/')}/"
        case "choice":
            return f"start: {' | '.join(json.dumps(each) for each in json.loads(output.definition))}"
        case "gbnf":
            return any_to_lark(output.definition)
    return output.definition


def _compile(programs: Programs, lark: str, param: str) -> Program:
    try:
        return programs.compile(lark)
    except GrammarError as error:
        raise BadRequestError(f"{param} cannot be enforced: {reason(str(error))}", param=param) from error

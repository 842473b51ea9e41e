"""Answers without a model: drawn from what a matcher allows, with the bundled model's tokenizer and template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

import forerun
from forerun.grammar.compile import Grammar, Grammars
from forerun.grammar.matcher import Matcher
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import NEUTRAL, CallRule, Chat, Job, OutputFormat

FOLDER = Path(forerun.__file__).parent / "data" / "demo-model"
TOKENIZER = Tokenizer.load(FOLDER)
PROMPTER = Prompter(TOKENIZER, Template.load(FOLDER))
VOCAB = TOKENIZER.size + 64  # as a model's padded output
GRAMMARS = Grammars(TOKENIZER, VOCAB)
END = max(TOKENIZER.stop_ids)
THINKING: dict[str, Any] = {}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 20}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode_alone(text)


def output(schema: Any, *, is_strict: bool = True) -> OutputFormat:
    return OutputFormat("json_schema", json.dumps(schema), is_strict, "response_format.json_schema.schema")


def job_of(chat: Chat, **fields: Any) -> Job:
    return Job("job", chat, NEUTRAL, None, (), None, "", "use", **fields)


def compiled(
    schema: Any,
    *,
    is_strict: bool = True,
    args: dict[str, Any] = THINKING,
    reasoning_tokens: int | None = None,
    calls: CallRule | None = None,
) -> Grammar:
    """The grammar of an answer in the form of the schema, None for any."""
    chat = Chat(({"role": "user", "content": "hi"},), (), args)
    held = None if schema is None else output(schema, is_strict=is_strict)
    job = job_of(chat, output=held, reasoning_tokens=reasoning_tokens, calls=calls or CallRule())
    grammar = GRAMMARS.compile(job, PROMPTER.encode(chat, tenant=""))
    assert grammar
    return grammar


def walk(matcher: Matcher, rng: random.Random, *, num_free: int = 20, most: int = 4000) -> list[int]:
    """An answer drawn evenly from what is allowed, the longer the more towards its end. num_free: tokens after which free text is ended."""
    answer: list[int] = []
    while len(answer) < most:
        token = draw(matcher.allowed(), rng, num_free - len(answer))
        matcher.accept(token)
        answer.append(token)
        if token in TOKENIZER.stop_ids:
            return answer
    raise AssertionError(f"no end after {most} tokens: ...{TOKENIZER.decode(answer[-200:])!r}")


CLOSERS = [END, *(token for text in ("</think>", "</tool_call>", '"', "}", "]", "\n", "</", ">", '"}', "1", ",") for token in tokens(text))]


def draw(mask: np.ndarray[Any, np.dtype[np.bool_]] | None, rng: random.Random, num_left: int) -> int:
    if num_left <= 0 or rng.random() < 0.1:
        allowed = [token for token in CLOSERS if mask is None or mask[token]]
        if allowed and rng.random() < 0.9:
            return allowed[0] if rng.random() < 0.5 else rng.choice(allowed)
    if mask is None:
        return rng.randrange(TOKENIZER.size - 9)
    return int(rng.choice(mask.nonzero()[0]))

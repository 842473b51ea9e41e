"""Answers without a model: drawn from what a matcher allows, with the bundled model's tokenizer and template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

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


def walk(matcher: Matcher, rng: random.Random, *, num_free: int = 20, most: int = 3000, encode: Any = None) -> list[int]:
    """An answer drawn evenly from what is allowed; after num_free tokens towards its end, and from time to time before."""
    answer: list[int] = []
    encode = encode or tokens
    while len(answer) < most:
        is_ending = len(answer) > num_free and rng.random() < 0.8
        for token in closing(matcher, rng, encode) if is_ending or rng.random() < 0.1 else [drawn(matcher, rng)]:
            mask = matcher.allowed()
            if mask is not None and not mask[token]:
                break
            matcher.accept(token)
            answer.append(token)
            if token in TOKENIZER.stop_ids:
                return answer
    raise AssertionError(f"no end after {most} tokens: ...{TOKENIZER.decode(answer[-100:])!r}")


CLOSINGS = [
    *("\n</parameter>\n", "</arg_value>", '<|"|>', "<escape>", '"', "</think>", "</function>\n</tool_call>", "</tool_call>", "}", "]", "1"),
    *(",", "null", "\n", "0", "a", "<tool_call|>", "<end_function_call>", ":", '"a"', '"}', "e", "11", "@a.b"),
]


def closing(matcher: Matcher, rng: random.Random, encode: Any) -> list[int]:
    """What may end a part of the answer, or the answer."""
    mask = matcher.allowed()
    if mask is None or mask[END]:
        return [END]
    if forced := matcher.forced():
        return forced
    texts = [text for text in CLOSINGS if mask[encode(text)[0]]]
    return encode(rng.choice(texts[:6] + texts[-2:])) if texts else [drawn(matcher, rng)]


def drawn(matcher: Matcher, rng: random.Random) -> int:
    mask = matcher.allowed()
    return rng.randrange(8000) if mask is None else int(rng.choice(mask.nonzero()[0]))

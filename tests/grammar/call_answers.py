"""Grammars of calls in every format, with a tokenizer that has the special tokens of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tokenizers
from tests.grammar.answers import FOLDER, PROMPTER, TOKENIZER, job_of

from forerun.grammar.compile import Grammar, Grammars
from forerun.text.answer_parser import AnswerFormat
from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4
from forerun.text.calls.json_calls import Hermes, Llama
from forerun.text.calls.tagged import GLM, QWEN
from forerun.text.message import AssistantMessage
from forerun.text.prompt import Prompt
from forerun.text.reasoning import THINK
from forerun.text.tokenizer import Tokenizer
from forerun.values import CallEnd, CallRule, Chat, OutputFormat

FORMATS: dict[str, CallFormat] = {
    "qwen": QWEN,
    "glm": GLM,
    "hermes": Hermes(),
    "llama": Llama(),
    "gemma": GEMMA_4,
    "function-gemma": FUNCTION_GEMMA,
}
ADDED = [
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>"),
    *("<end_function_call>", "<escape>", "<|python_tag|>"),
]


def with_tokens(added: Sequence[str], removed: Sequence[str] = ()) -> Tokenizer:
    """The bundled tokenizer with these special tokens besides, or without some of its own."""
    definition = json.loads((FOLDER / "tokenizer.json").read_text())
    kept = [each for each in definition["added_tokens"] if each["content"] not in removed]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    more = [{"id": TOKENIZER.size + i, "content": text, **plain} for i, text in enumerate(added)]
    library = tokenizers.Tokenizer.from_str(json.dumps({**definition, "added_tokens": kept + more}))
    return Tokenizer(library, digest=str(added), stop_ids=TOKENIZER.stop_ids)


ALL_TOKENS = with_tokens(ADDED)
ALL_GRAMMARS = Grammars(ALL_TOKENS, ALL_TOKENS.size + 40)
SPELLED = with_tokens((), removed=("<tool_call>", "</tool_call>", "<think>", "</think>"))
SPELLED_GRAMMARS = Grammars(SPELLED, SPELLED.size)


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def prompt_of(call_format: CallFormat, tools: Sequence[Any], *, is_thinking: bool = False) -> tuple[Chat, Prompt]:
    chat = Chat(({"role": "user", "content": "hi"},), tuple(tools), {"enable_thinking": is_thinking})
    prompt = PROMPTER.encode(chat, tenant="")
    return chat, replace(prompt, answer_format=AnswerFormat(THINK, call_format))


def calls_of(
    call_format: CallFormat,
    tools: Sequence[Any],
    rule: CallRule,
    *,
    is_thinking: bool = False,
    output: OutputFormat | None = None,
    grammars: Grammars = ALL_GRAMMARS,
) -> tuple[Grammar, Prompt]:
    """The grammar of an answer that may, or must, call tools."""
    chat, prompt = prompt_of(call_format, tools, is_thinking=is_thinking)
    grammar = grammars.compile(job_of(chat, calls=rule, output=output), prompt)
    assert grammar
    return grammar, prompt


def parsed(prompt: Prompt, text: str) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The message, and its calls: all are complete."""
    parser = prompt.answer_parser("job", lambda start, stop: ())
    pieces = parser.push(text) + parser.flush()
    assert all(piece.is_complete for piece in pieces if isinstance(piece, CallEnd)), text
    built = AssistantMessage()
    for piece in pieces:
        built.take(piece)
    message = built.value()
    calls = [each["function"] for each in message.get("tool_calls", [])]
    return message, [(call["name"], json.loads(call["arguments"])) for call in calls]

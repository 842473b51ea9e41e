"""Calls that an answer may make: text stays free, a call that was opened is held, and answers around the borders of the phases."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.grammar.answers import END, GRAMMARS, SCHEMA, compiled, job_of, output, walk
from tests.grammar.call_answers import ALL_GRAMMARS, ALL_TOKENS, FORMATS, SPELLED, SPELLED_GRAMMARS, calls_of, parsed, prompt_of, tool

from forerun.errors import BadRequestError
from forerun.grammar.matcher import Matcher
from forerun.text.tokenizer import Tokenizer
from forerun.values import CallRule, OutputFormat

READ = tool("read", {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["path"]})
STOP = tool("stop", {"type": "object", "properties": {}})
TOOLS = [READ, STOP]
# A call as each format writes it, cut at § where it is held from.
CALLS = {
    "qwen": "<tool_call>§\n<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>§read\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n</tool_call>",
    "hermes": '<tool_call>§\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>',
    "llama": '{"name": "read", "parameters": §{"path": "a.py"}}',
    "gemma": '<|tool_call>§call:read{path:<|"|>a.py<|"|>}<tool_call|>',
    "function-gemma": "<start_function_call>§call:read{path:<escape>a.py<escape>}<end_function_call>",
}


def cut(name: str) -> tuple[str, str]:
    """What opens a call, and its rest."""
    opening, _, rest = CALLS[name].rpartition("§")
    return opening, rest


def feed(matcher: Matcher, text: str, tokenizer: Tokenizer = ALL_TOKENS) -> list[int]:
    tokens = tokenizer.encode_alone(text)
    for token in tokens:
        matcher.accept(token)
    return tokens


def allows(matcher: Matcher, token: int) -> bool:
    mask = matcher.allowed()
    return mask is None or bool(mask[token])


@pytest.mark.parametrize("name", FORMATS)
def test_free_text_is_free_and_a_call_is_held(name: str) -> None:
    matcher = calls_of(FORMATS[name], TOOLS, CallRule())[0].matcher()
    opening, rest = cut(name)
    if name != "llama":
        assert matcher.allowed() is None
        feed(matcher, "I will look. ")
        assert matcher.allowed() is None
    feed(matcher, opening)
    assert not allows(matcher, END)
    assert not allows(matcher, ALL_TOKENS.encode_alone("Hello")[0])
    feed(matcher, rest)
    assert allows(matcher, END)
    assert allows(matcher, ALL_TOKENS.encode_alone("Hello")[0])


@pytest.mark.parametrize("name", FORMATS)
def test_only_one_call_where_they_are_not_parallel(name: str) -> None:
    matcher = calls_of(FORMATS[name], TOOLS, CallRule(is_parallel=False))[0].matcher()
    first = feed(matcher, "".join(cut(name)))[0]
    assert not allows(matcher, first)
    assert allows(matcher, END)


def test_a_name_that_is_not_allowed_cannot_be_called() -> None:
    matcher = calls_of(FORMATS["qwen"], TOOLS, CallRule(allowed=("stop",)))[0].matcher()
    feed(matcher, "<tool_call>\n<function=")
    assert not allows(matcher, ALL_TOKENS.encode_alone("read")[0])
    feed(matcher, "stop>\n</function>\n</tool_call>")


def test_no_call_can_be_opened_where_none_is_allowed() -> None:
    matcher = calls_of(FORMATS["qwen"], TOOLS, CallRule(allowed=()))[0].matcher()
    assert not allows(matcher, ALL_TOKENS.encode_alone("<tool_call>")[0])


def test_calls_that_are_not_enforced_are_free() -> None:
    chat, prompt = prompt_of(FORMATS["qwen"], TOOLS)
    assert ALL_GRAMMARS.compile(job_of(chat, calls=CallRule(is_enforced=False)), prompt) is None


def test_a_call_without_its_tag_is_held_from_its_name_on() -> None:
    matcher = calls_of(FORMATS["qwen"], TOOLS, CallRule())[0].matcher()
    feed(matcher, "Use <function=other> or <function=read")
    assert allows(matcher, END)
    feed(matcher, ">")
    assert not allows(matcher, END)
    feed(matcher, "\n<parameter=path>\na\n</parameter>\n</function>")
    assert allows(matcher, END)


@pytest.mark.parametrize("num_spaces", range(4))
def test_tags_that_several_tokens_spell_are_found_wherever_they_stand(num_spaces: int) -> None:
    text = "a" * num_spaces + cut("hermes")[0]
    matcher = calls_of(FORMATS["hermes"], TOOLS, CallRule(), grammars=SPELLED_GRAMMARS)[0].matcher()
    feed(matcher, text, SPELLED)
    assert not allows(matcher, END)
    matcher.rollback(1)
    assert allows(matcher, END)


@pytest.mark.parametrize("is_spelled", [False, True])
def test_what_follows_the_reasoning_is_held_from_its_first_token(is_spelled: bool) -> None:
    tokenizer, grammars = (SPELLED, SPELLED_GRAMMARS) if is_spelled else (ALL_TOKENS, ALL_GRAMMARS)
    grammar, _ = calls_of(FORMATS["qwen"], TOOLS, CallRule(is_required=True), is_thinking=True, grammars=grammars)
    matcher = grammar.matcher()
    feed(matcher, "Hm.\n</think>", tokenizer)
    assert not allows(matcher, tokenizer.encode_alone("Hello")[0])
    assert not allows(matcher, END)
    feed(matcher, "\n\n<tool_call>\n<function=stop>\n</function>\n</tool_call>", tokenizer)
    assert allows(matcher, END)


def test_a_token_that_goes_on_behind_the_closing_tag_must_fit_the_body() -> None:
    grammar, _ = calls_of(FORMATS["qwen"], TOOLS, CallRule(is_required=True), is_thinking=True, grammars=SPELLED_GRAMMARS)
    matcher = grammar.matcher()
    feed(matcher, "Hm.\n</think", SPELLED)
    behind = [token for token in range(SPELLED.size) if SPELLED.token_bytes(token).startswith(b">") and len(SPELLED.token_bytes(token)) > 1]
    assert {SPELLED.token_bytes(token).strip() for token in behind if allows(matcher, token)} == {b">"}


def test_reasoning_that_must_lead_to_a_call_holds_none() -> None:
    matcher = calls_of(FORMATS["qwen"], TOOLS, CallRule(is_required=True), is_thinking=True)[0].matcher()
    assert not allows(matcher, ALL_TOKENS.encode_alone("<tool_call>")[0])


def test_an_answer_may_open_its_own_reasoning() -> None:
    chat, prompt = prompt_of(FORMATS["hermes"], TOOLS)
    closed = GRAMMARS.compile(job_of(chat, output=output(SCHEMA)), prompt)
    silent = GRAMMARS.compile(job_of(chat, output=output(SCHEMA)), replace(prompt, text="<|im_start|>assistant\n"))
    assert closed
    assert silent
    think = ALL_TOKENS.encode_alone("<think>")[0]
    assert not allows(closed.matcher(), think)
    matcher = silent.matcher()
    matcher.accept(think)
    assert not allows(matcher, END)
    feed(matcher, "Hm.</think>")
    feed(matcher, '{"a":1,"b":"x"}')
    assert allows(matcher, END)


@pytest.mark.parametrize("num", range(5))
def test_an_answer_ends_at_any_row_of_a_window(num: int) -> None:
    matcher = compiled({"enum": ["a" * num]}, args={"enable_thinking": False}).matcher()
    tokens = feed(matcher, json.dumps("a" * num))
    matcher.accept(END)
    with pytest.raises(ValueError, match="not allowed"):
        matcher.accept(tokens[0])
    matcher.rollback(len(tokens) + 1)
    feed(matcher, json.dumps("a" * num))


def test_a_lover_of_line_breaks_comes_to_an_end() -> None:
    matcher, newline = compiled(SCHEMA, args={"enable_thinking": False}).matcher(), ALL_TOKENS.encode_alone("\n")[0]
    num = 0
    while allows(matcher, newline):
        matcher.accept(newline)
        num += 1
    feed(matcher, "{")
    while allows(matcher, newline):
        matcher.accept(newline)
        num += 1
    assert num < 10


@pytest.mark.parametrize("name", FORMATS)
def test_output_or_calls(name: str) -> None:
    """With a format and tools an answer is one or the other."""
    grammar, prompt = calls_of(FORMATS[name], TOOLS, CallRule(), output=output(SCHEMA))
    kinds = set()
    for seed in range(30):
        message, calls = parsed(
            prompt, ALL_TOKENS.decode(walk(grammar.matcher(), random.Random(seed), encode=ALL_TOKENS.encode_alone)[:-1])
        )
        kinds.add(bool(calls))
        if not calls:
            assert set(json.loads(message["content"], strict=False)) == {"a", "b"}
    assert kinds == {True, False} or name == "llama"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "definition", "valid"), [("regex", "[a-c]{2,5}", r"[a-c]{2,5}"), ("choice", '["yes", "no"]', "yes|no")])
def test_the_argument_of_a_custom_tool_has_its_format(name: str, kind: Any, definition: str, valid: str) -> None:
    declared = tool("run", {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
    rule = CallRule(is_required=True, inputs={"run": OutputFormat(kind, definition, True, "tools[0].format")})
    grammar, prompt = calls_of(FORMATS[name], [declared], rule)
    for seed in range(5):
        answer = walk(grammar.matcher(), random.Random(seed), encode=ALL_TOKENS.encode_alone)
        for _, arguments in parsed(prompt, ALL_TOKENS.decode(answer[:-1]))[1]:
            assert re.fullmatch(valid, arguments["input"])


PATCH = """start: "*** Begin Patch" LF line+ "*** End Patch" LF?
line: "+" /[^\\n]*/ LF
LF: "\\n"
"""


@pytest.mark.parametrize("name", ["qwen", "glm", "gemma", "function-gemma"])
def test_the_argument_of_a_custom_tool_follows_its_grammar(name: str) -> None:
    declared = tool("apply_patch", {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
    rule = CallRule(is_required=True, inputs={"apply_patch": OutputFormat("lark", PATCH, True, "tools[0].format")})
    grammar, prompt = calls_of(FORMATS[name], [declared], rule)
    for seed in range(5):
        answer = walk(grammar.matcher(), random.Random(seed), encode=ALL_TOKENS.encode_alone)
        for _, arguments in parsed(prompt, ALL_TOKENS.decode(answer[:-1]))[1]:
            assert re.fullmatch(r"\*\*\* Begin Patch\n(\+[^\n]*\n)+\*\*\* End Patch\n?", arguments["input"])


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_a_grammar_that_is_not_held_within_json_is_reported(name: str) -> None:
    declared = tool("apply_patch", {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
    rule = CallRule(inputs={"apply_patch": OutputFormat("lark", PATCH, True, "tools[0].format")})
    assert calls_of(FORMATS[name], [declared], rule)[0].unenforced == ("apply_patch.parameters.input",)


def test_a_required_call_without_tools_is_refused() -> None:
    with pytest.raises(BadRequestError, match="a call is required"):
        calls_of(FORMATS["qwen"], [], CallRule(is_required=True))


def test_nothing_follows_a_stop_token_in_free_text() -> None:
    matcher = calls_of(FORMATS["qwen"], TOOLS, CallRule())[0].matcher()
    feed(matcher, "Done.")
    matcher.accept(END)
    mask = matcher.allowed()
    assert mask is not None
    assert set(mask.nonzero()[0].tolist()) == set(ALL_TOKENS.stop_ids)


def test_a_bare_call_is_one_only_where_text_begins() -> None:
    matcher = calls_of(FORMATS["llama"], TOOLS, CallRule())[0].matcher()
    feed(matcher, "An answer that is longer than the opening of any call, then a line break\n" + cut("llama")[0])
    assert allows(matcher, END)

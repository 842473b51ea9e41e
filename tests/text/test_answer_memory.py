"""The next prompt starts with the ids that the model sampled, however the client rewrites the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from tests.text.conftest import no_logprobs

from forerun.text.answer_memory import AnswerMemory
from forerun.text.message import AssistantMessage
from forerun.text.prompt import Prompt, Prompter, SampledAnswer
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

TOOL = {"type": "function", "function": {"name": "write", "parameters": {"properties": {"path": {"type": "string"}}}}}
USER = {"role": "user", "content": "Write it."}
CHAT = Chat((USER,), (TOOL,), {})
RESULT = {"role": "tool", "content": "done"}
THOUGHT = "I write  it.\n</think>\n\n"
CALL = '<tool_call>\n{"name":"write","arguments":{"path": "é.py", "size":9000.0,  "force": true}}\n</tool_call>'
ESCAPED = f'{THOUGHT}<tool_call>\n{{"name": "write",  "arguments": {{"path": "a <tool_call> b <", "size": 9000.0}}}}\n</tool_call>'
OPEN = f"I write  it.\n{CALL}"  # the reasoning is not closed before the call
TWO = f"{THOUGHT}Two \n\n\n{CALL}\n{CALL}\n"
STRIPPING = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"""


@pytest.fixture
def prompter(tokenizer: Tokenizer, template: Template) -> Prompter:
    return Prompter(tokenizer, template)


def oddly(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of the text that no tokenizer would choose: cut in threes. Control tokens stay whole."""
    cut = [part if part.startswith("<") else wrap(part, 3) for part in re.split("(</?think>|</?tool_call>)", text)]
    return tuple(
        id for each in cut for part in ([each] if isinstance(each, str) else each) for id in tokenizer.encode(part, tenant="other")
    )


def wrap(text: str, length: int) -> list[str]:
    return [text[i : i + length] for i in range(0, len(text), length)]


def answer(prompter: Prompter, prompt: Prompt, text: str, job: str = "job") -> tuple[tuple[int, ...], dict[str, Any]]:
    """The model answers. Returns the sampled ids and the message that the client receives."""
    parser, message = prompt.answer_parser(job, no_logprobs), AssistantMessage()
    for piece in (*parser.push(text), *parser.flush()):
        message.take(piece)
    sampled = oddly(prompter.tokenizer, text)
    assert prompter.tokenizer.decode(sampled) == text
    prompter.remember_answer(CHAT, prompt, SampledAnswer(sampled, text, message.value()), tenant="a")
    return sampled, message.value()


def next_prompt(prompter: Prompter, echo: Mapping[str, Any], *more: Mapping[str, Any], tenant: str = "a") -> tuple[int, ...]:
    return prompter.encode(Chat((USER, echo, *more), (TOOL,), {}), tenant=tenant).tokens


def with_arguments(message: Mapping[str, Any], rewrite: Any) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": rewrite(call["function"]["arguments"])}} for call in message["tool_calls"]
    ]
    return {**message, "content": message["content"] or "", "tool_calls": calls}


REWRITTEN = {
    "as it was": lambda text: text,
    "compact": lambda text: json.dumps(json.loads(text) | {"size": 9000}, separators=(",", ":"), ensure_ascii=False),
    "escaped": lambda text: json.dumps(json.loads(text)),
    "in another order": lambda text: json.dumps(dict(reversed(json.loads(text).items()))),
    "parsed": json.loads,
}


@pytest.mark.parametrize("rewrite", REWRITTEN.values(), ids=REWRITTEN)
@pytest.mark.parametrize(
    "text",
    [THOUGHT + CALL, TWO, f"\n{THOUGHT} \n{CALL}", ESCAPED, OPEN, f"{OPEN}\n</think>\n"],
    ids=["call", "two", "blank", "escaped", "open", "late"],
)
def test_a_call_comes_back_with_the_ids_that_were_sampled(prompter: Prompter, text: str, rewrite: Any) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    sampled, message = answer(prompter, prompt, text)
    tokens = next_prompt(prompter, with_arguments(message, rewrite), RESULT)
    assert tokens[: len(prompt.tokens) + len(sampled)] == (*prompt.tokens, *sampled)
    assert tokens[len(prompt.tokens) + len(sampled)] in prompter.tokenizer.stop_ids


@pytest.mark.parametrize("text", [THOUGHT + "Yes  \n", f"{THOUGHT}\n  Yes", "Hm\n\n\n</think>Yes", "Hm, cut off"])
@pytest.mark.parametrize("strips", [False, True])
def test_a_text_comes_back_with_the_ids_that_were_sampled(prompter: Prompter, text: str, strips: bool) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    sampled, message = answer(prompter, prompt, text)
    echo = {name: value.strip() if strips else value for name, value in message.items()}
    assert next_prompt(prompter, echo, USER)[: len(prompt.tokens) + len(sampled)] == (*prompt.tokens, *sampled)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("9000.0", "9001"),
        lambda text: text.replace("true", "1"),
        lambda text: text.replace("é", "e"),
        lambda text: text + "x",
    ],
)
def test_what_the_client_changed_stays_changed(prompter: Prompter, change: Any) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    _, message = answer(prompter, prompt, THOUGHT + CALL)
    fresh = Prompter(prompter.tokenizer, prompter.template)
    changed = with_arguments(message, change)
    assert prompter.tokenizer.decode(next_prompt(prompter, changed, RESULT)) == prompter.tokenizer.decode(
        next_prompt(fresh, changed, RESULT)
    )


def test_an_answer_sent_back_without_its_reasoning_has_none(prompter: Prompter) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    _, message = answer(prompter, prompt, THOUGHT + CALL)
    without = {name: value for name, value in with_arguments(message, str).items() if name != "reasoning_content"}
    assert "I write" not in prompter.tokenizer.decode(next_prompt(prompter, without, RESULT))


def test_another_tenant_gets_nothing_of_it(prompter: Prompter, tokenizer: Tokenizer, template: Template) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    _, message = answer(prompter, prompt, THOUGHT + CALL)
    echo = with_arguments(message, REWRITTEN["compact"])
    expected = next_prompt(
        Prompter(Tokenizer(tokenizer._library, digest="", stop_ids=tokenizer.stop_ids), template), echo, RESULT, tenant="b"
    )
    assert next_prompt(prompter, echo, RESULT, tenant="b") == expected != next_prompt(prompter, echo, RESULT)


def test_two_answers_to_one_prompt_both_come_back(prompter: Prompter) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    texts = [THOUGHT + CALL, f"{THOUGHT}Yes.  {CALL}"]
    for sampled, message in [answer(prompter, prompt, text, f"job-{i}") for i, text in enumerate(texts)]:
        tokens = next_prompt(prompter, with_arguments(message, REWRITTEN["compact"]), RESULT)
        assert tokens[: len(prompt.tokens) + len(sampled)] == (*prompt.tokens, *sampled)


def test_what_the_template_strips_stays_stripped(tokenizer: Tokenizer) -> None:
    prompter = Prompter(tokenizer, Template(STRIPPING, {}))
    prompt = prompter.encode(CHAT, tenant="a")
    _, message = answer(prompter, prompt, THOUGHT + CALL)
    assert "I write" in tokenizer.decode(next_prompt(prompter, with_arguments(message, str)))
    assert "I write" not in tokenizer.decode(next_prompt(prompter, with_arguments(message, str), RESULT))


def test_an_answer_cut_inside_a_token_is_not_remembered(prompter: Prompter) -> None:
    prompt = prompter.encode(CHAT, tenant="a")
    message = {"role": "assistant", "content": "Yes and", "reasoning_content": "Hm"}
    sampled = tuple(prompter.tokenizer.encode("Hm</think>\n\nYes", tenant="a"))
    prompter.remember_answer(CHAT, prompt, SampledAnswer(sampled, "Hm</think>\n\nYes and", message), tenant="a")
    assert "Yes and<|im_end|>" in prompter.tokenizer.decode(next_prompt(prompter, message, USER))


def test_the_oldest_is_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.text.answer_memory.LIMIT_CHARS", 300)
    memory = AnswerMemory()
    for i in range(5):
        memory.add({"role": "assistant", "content": f"{i} {'x' * 50} "}, tenant="a")
    sent = [{"role": "assistant", "content": f"{i} {'x' * 50}"} for i in range(5)]
    assert [message["content"].endswith(" ") for message in memory.restore(sent, tenant="a")] == [False, False, True, True, True]

"""Borders in a long first message: up to them, prompts with other parts have the same tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.text import prompt_borders
from forerun.text.prompt import Prompter
from forerun.text.prompt_borders import LEAST_TOKENS, MOST_TOOLS, WORD_TOKENS
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

USER = {"role": "user", "content": "Fix it."}
SYSTEM_TEXT = "Follow the rules of the house. " * 200
TOOLS_FIRST = Template(
    "<|im_start|>system\n{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}\n"
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}<|im_end|>\n<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% endif %}{% endfor %}<|im_end|>\n",
    {},
)


def tool(name: str, description: str = "Does one thing. " * 40) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


TOOLS = tuple(tool(name) for name in ("read", "write", "run"))


def chat(system: str, tools: tuple[dict[str, Any], ...], *rest: dict[str, str]) -> Chat:
    return Chat(({"role": "system", "content": system}, USER, *rest), tools, {})


def num_common(prompter: Prompter, one: Chat, other: Chat) -> int:
    first, second = (prompter.encode(each, tenant="").tokens for each in (one, other))
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


@pytest.fixture(params=["system first", "tools first"])
def prompter(request: pytest.FixtureRequest, tokenizer: Tokenizer, template: Template) -> Prompter:
    return Prompter(tokenizer, template if request.param == "system first" else TOOLS_FIRST)


ENDS = ["", ".", "\n", " \n\n", "<|im_end|>", "<|im_", "日本", "e\u0301", "🙂"]


@pytest.mark.parametrize("end", ENDS)
def test_other_parts_have_the_same_tokens_up_to_a_border(prompter: Prompter, end: str) -> None:
    system = SYSTEM_TEXT + end
    borders = prompter.encode(chat(system, TOOLS), tenant="").borders
    others = [chat(system, ()), chat("Another.", TOOLS), chat(system, TOOLS[:1]), chat(system, TOOLS[:2])]
    shared = [num_common(prompter, chat(system, TOOLS), other) for other in others]
    assert len(borders) == 4
    for border, most in zip(borders, shared, strict=True):
        assert border < WORD_TOKENS or most - WORD_TOKENS <= border <= most, (borders, shared)


def test_a_later_turn_and_another_question_have_the_same_borders(prompter: Prompter) -> None:
    first = prompter.encode(chat(SYSTEM_TEXT, TOOLS), tenant="").borders
    answer = {"role": "assistant", "content": "Done."}
    assert prompter.encode(chat(SYSTEM_TEXT, TOOLS, answer, USER), tenant="").borders == first != ()


def test_a_first_message_is_rendered_in_parts_only_once_a_tenant(prompter: Prompter, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, attempt = [], Template.attempt
    monkeypatch.setattr(Template, "attempt", lambda self, *args, **named: (rendered.append(1), attempt(self, *args, **named))[1])
    for _ in range(3):
        prompter.encode(chat(SYSTEM_TEXT, TOOLS), tenant="a")
    assert len(rendered) == 5
    prompter.encode(chat(SYSTEM_TEXT, TOOLS), tenant="b")
    assert len(rendered) == 10


def test_of_many_tools_few_are_looked_at(prompter: Prompter) -> None:
    tools = tuple(tool(f"tool {number}", "Does it. " * 10) for number in range(100))
    assert 2 < len(prompter.encode(chat(SYSTEM_TEXT, tools), tenant="").borders) <= MOST_TOOLS + 2


@pytest.mark.parametrize(
    "prompt",
    [
        chat(SYSTEM_TEXT, ()),
        chat("Short.", (tool("read", "Reads."),)),
        Chat((USER,), (), {}),
    ],
    ids=["no tools", "short", "nothing but a question"],
)
def test_what_has_no_parts_or_is_short_has_no_borders(prompter: Prompter, prompt: Chat) -> None:
    assert prompter.encode(prompt, tenant="").borders == ()


def test_tools_without_a_system_text_have_borders_between_them(prompter: Prompter) -> None:
    tools = tuple(tool(name, "Does one thing. " * 200) for name in ("read", "write", "run"))
    assert len(prompter.encode(Chat((USER,), tools, {}), tenant="").borders) == 2


def test_a_template_that_puts_tools_later_has_no_border_beyond_its_first_message(tokenizer: Tokenizer) -> None:
    template = Template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ tools | tojson if tools }}", {}
    )
    prompt = Prompter(tokenizer, template).encode(chat(SYSTEM_TEXT, TOOLS), tenant="")
    head = next(i + 1 for i, token in enumerate(prompt.tokens) if token in tokenizer.stop_ids)
    assert head >= LEAST_TOKENS
    assert all(border < head for border in prompt.borders)


def test_a_template_that_refuses_a_part_alone_still_has_the_others(tokenizer: Tokenizer) -> None:
    refusing = Template(
        "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{% for message in messages %}<|im_start|>{{ message.role }}{{ '\n' }}"
        "{% if loop.first %}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% endif %}"
        "{{ message.content }}<|im_end|>{{ '\n' }}{% endfor %}",
        {},
    )
    assert len(Prompter(tokenizer, refusing).encode(chat(SYSTEM_TEXT, TOOLS), tenant="").borders) == 3


def test_the_oldest_first_messages_are_forgotten(prompter: Prompter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_borders, "LIMIT_ENTRIES", 2)
    prompter = Prompter(prompter.tokenizer, prompter.template)
    for number in range(4):
        prompter.encode(chat(f"{number} {SYSTEM_TEXT}", TOOLS), tenant="")
    assert len(prompter._borders._found._entries) == 2
    assert SYSTEM_TEXT not in json.dumps(list(prompter._borders._found._entries))

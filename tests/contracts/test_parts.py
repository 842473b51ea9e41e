"""A request that keeps a part of a conversation's first message, and changes or drops the rest, reuses that part: whichever of system text
and tools the template puts first, from RAM and after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Rig, events
from tests.talking import tokenizer
from tests.waiting import LIMIT_S

from forerun.bank.policy import APART_TOKENS
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt_borders import WORD_TOKENS
from forerun.text.template import Template
from forerun.values import Chat, Done

CONTEXT = 16_384
SLACK_TOKENS = WORD_TOKENS
PARTS = (
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}",
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}",
)
REST = (
    "<|im_end|>\n{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BUNDLED = Template.load(DEMO_MODEL)
SYSTEM_FIRST = Template(f"<|im_start|>system\n{PARTS[0]}\n\n{PARTS[1]}{REST}", {})
TOOLS_FIRST = Template(f"<|im_start|>system\n{PARTS[1]}\n\n{PARTS[0]}{REST}", {})


def words(seed: str, num_tokens: int) -> str:
    """A text of about so many tokens."""
    text = " ".join(f"{seed} {i} is at line {i * 7}." for i in range(num_tokens))
    return tokenizer().decode(tokenizer().encode(text, tenant="")[:num_tokens])


def tool(name: str, num_tokens: int) -> dict[str, Any]:
    function = {"name": name, "description": words(name, num_tokens), "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


SYSTEM = words("rule", 2000)
TOOLS = (tool("read", 600), tool("write", 1200), tool("run", 1200))


def chat(system: str, tools: tuple[dict[str, Any], ...], *texts: str) -> Chat:
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return Chat(({"role": "system", "content": system}, *messages), tools, {})


MAIN = chat(SYSTEM, TOOLS, "Fix the bug.")


async def asked(rig: Rig, prompt: Chat) -> tuple[Done, str]:
    run = await events(await rig.ask((), prompt=prompt))
    done = run[-1]
    assert isinstance(done, Done)
    return done, "".join(getattr(event, "text", "") for event in run)


def reused(template: Template, folder: Path | None, *prompts: Chat) -> list[int]:
    """Tokens that each prompt reuses, in order; with a folder the server is restarted before each."""

    async def scenario() -> list[int]:
        found, rig = list[int](), None
        for prompt in prompts:
            rig = rig or Rig(folder, context_tokens=CONTEXT, template=template)
            found.append((await asked(rig, prompt))[0].report.reused_tokens)
            if folder:
                await rig.engine.close(LIMIT_S)
                rig = None
        if rig:
            await rig.engine.close(LIMIT_S)
        return found

    return asyncio.run(scenario())


def shared(template: Template, one: Chat, other: Chat) -> int:
    """Length of the common prefix of two prompts in tokens."""
    first, second = (tokenizer().encode(template.render(each, add_generation_prompt=True), tenant="") for each in (one, other))
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


@pytest.fixture(params=["ram", "ssd"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "bank" if request.param == "ssd" else None


@pytest.mark.parametrize(
    ("template", "other", "at_least"),
    [
        (BUNDLED, chat(SYSTEM, (), "Summarise."), 2000),
        (BUNDLED, chat(SYSTEM, (tool("other", 900),), "Summarise."), 2000),
        (BUNDLED, chat(SYSTEM, TOOLS[:2], "Explore."), 3000),
        (SYSTEM_FIRST, chat(SYSTEM, (), "Summarise."), 2000),
        (TOOLS_FIRST, chat("Another agent.", TOOLS, "Explore."), 3000),
        (TOOLS_FIRST, Chat(({"role": "user", "content": "Explore."},), TOOLS, {}), 3000),
        (TOOLS_FIRST, chat(SYSTEM, TOOLS[:2], "Explore."), 1800),
    ],
    ids=[
        "no tools",
        "other tools",
        "fewer tools",
        "no tools, a template of another form",
        "another system text after the tools",
        "no system text",
        "fewer tools before the system text",
    ],
)
def test_the_part_that_is_shared_is_reused(template: Template, other: Chat, at_least: int, folder: Path | None) -> None:
    first, second = reused(template, folder, MAIN, other)
    at = shared(template, MAIN, other)
    assert first == 0
    assert at >= second >= at_least - SLACK_TOKENS
    assert at - second <= APART_TOKENS + SLACK_TOKENS


def test_conversations_that_share_the_first_message_continue_where_they_ended(folder: Path | None) -> None:
    async def scenario() -> None:
        rig = Rig(folder, context_tokens=CONTEXT)
        done = {}
        for text in ("Fix the bug.", "Write a test."):
            done[text] = await asked(rig, chat(SYSTEM, TOOLS, text))
        await asked(rig, chat(SYSTEM, (), "Summarise."))
        for text, (before, answer) in done.items():
            after, _ = await asked(rig, chat(SYSTEM, TOOLS, text, answer, "And now?"))
            assert after.report.reused_tokens >= before.usage.prompt_tokens - 5, text
        await rig.engine.close(LIMIT_S)

    asyncio.run(scenario())


def test_parts_that_save_less_than_a_snapshot_is_worth_have_none() -> None:
    short, tools = words("rule", APART_TOKENS - 100), (tool("read", 300), tool("write", 300))
    first = chat(short, tools, "Fix the bug.")
    assert reused(BUNDLED, None, first, chat(short, (), "Summarise.")) == [0, 0]

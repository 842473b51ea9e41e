"""Case 01: a large text must not stop other requests, and one that cannot fit is refused without being encoded."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.engine.engines import running
from tests.talking import tokenizer
from tests.waiting import longest_stop_s

from forerun.errors import ContextLengthError
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import GREEDY, Chat, Job, Prompt, TextPrompt

LINE = "2026-11-30T15:00:00Z INFO worker=3 path=/a/b/c.py line=127 ok\n"
LONGEST_STOP_S = 0.5


def chat(text: str) -> Chat:
    return Chat(({"role": "user", "content": text},), (), {})


@pytest.mark.parametrize("text", [LINE * 32_000, "a" * 2_000_000], ids=["lines", "letters"])
def test_other_threads_run_while_a_large_text_is_encoded(text: str) -> None:
    prompter = Prompter(Tokenizer.load(DEMO_MODEL), Template.load(DEMO_MODEL))
    stops_s = [longest_stop_s(partial(prompter.encode, chat(text), tenant=tenant)) for tenant in ("a", "b")]
    assert min(stops_s) < LONGEST_STOP_S, "twice, since a busy machine stops a thread too"


@pytest.mark.parametrize("prompt", [chat(LINE * 100_000), TextPrompt(LINE * 100_000)])
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(context_tokens=4096) as rig:
            monkeypatch.setattr(Tokenizer, "encode_escaped", lambda *args, **kwargs: pytest.fail("it was encoded"))
            with pytest.raises(ContextLengthError, match=r"prompt is too long: at least \d+ tokens > 4095 maximum"):
                await rig.engine.submit(Job("big", prompt, GREEDY, 4, (), None, "", "use"))

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["", "a", LINE, "\ud7ff" * 50, " " * 500, "<|im_end|>" * 40, "\ufdd0<|im_end|>\ufdd1"])
def test_the_bound_is_never_above_the_number_of_tokens(text: str) -> None:
    assert tokenizer().min_tokens(text) <= len(tokenizer().encode(text, tenant=""))

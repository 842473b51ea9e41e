"""Servers with different instruction sets, one after the other on one bank folder: each continues what the other stored, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.home import Home, home_at

from forerun.kernels import cpu

# `python -c FORCED NAME ...` is `forerun ...` with the kernels of that instruction set; no setting of forerun chooses one.
FORCED = """
import sys
from forerun.config import Config, prepare
prepare(Config.model_validate({}))
from forerun.kernels import cpu
cpu.extension().use(sys.argv.pop(1))
from forerun.cli import main
main()
"""
QUESTIONS = ("Hello!", "Write a list of three colours.", "Count to five.")


def restart(home: Home, instruction_set: str) -> None:
    home.server.stop()
    home.command = [home.command[0], "-c", FORCED, instruction_set, *home.command[home.command.index("serve") :]]
    home.start()
    assert instruction_set in home.server.line["kernels"]


def turn(home: Home, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer with its logprobs, which must be those without stored state; it becomes part of the conversation."""
    answer, plain = (home.ask(messages, logprobs=True, top_logprobs=5, forerun=body) for body in ({}, {"bank": "bypass"}))
    assert answer["choices"] == plain["choices"]
    assert plain["forerun"]["reused_tokens"] == 0
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return answer


def test_each_restores_the_other_ones_conversation(tmp_path: Path) -> None:
    kernels = cpu.extension()
    if kernels is None or len(kernels.instruction_sets()) < 2:
        pytest.skip("no two instruction sets run here")
    fast, other = kernels.instruction_sets()[:2]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful assistant. " * 6}]
    with home_at(tmp_path) as home:
        stored = 0
        for name, question in zip((fast, other, fast), QUESTIONS, strict=True):
            restart(home, name)
            messages.append({"role": "user", "content": question})
            answer = turn(home, messages)
            report, usage = answer["forerun"], answer["usage"]
            assert report["source"] == ("ssd" if stored else "cold")
            assert report["reused_tokens"] == stored
            stored = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # no pass followed the last token

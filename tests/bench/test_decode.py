"""The measurement of decoding: its samples and its summary. On the tiny model; speeds do not matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from tests import tiny

from forerun.bench.decode import PLAIN, Bench, Sample, Variant, prompts, rates, summary
from forerun.config import environ_without_settings
from forerun.decode.compiled import StepTable
from forerun.decode.depth import policy_for
from forerun.decode.draft_stats import DraftStats, Round
from forerun.models.load import DEMO_MODEL
from forerun.text.answer_parser import PLAIN as UNSPLIT
from forerun.text.calls.tools import Tools
from forerun.text.prompt import Prompt, Prompter
from forerun.text.prompt_locations import PromptLocator
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(DEMO_MODEL)


def sample(repeat: int, arm: str, tokens: int, seconds: float, drafted: int = 0, accepted: int = 0) -> Sample:
    draft_stats = DraftStats()
    draft_stats.add(Round([0] * (accepted + 1), drafted, accepted, None))
    return Sample(0, repeat, "greedy", arm, tokens, seconds, 2 * seconds, draft_stats)


def prompt_of(words: list[int], message_end: int) -> Prompt:
    return Prompt(tuple(words), message_end, False, "", UNSPLIT, Tools(()), (), PromptLocator(Template.load(DEMO_MODEL), None), (), ())


def test_every_turn_is_answered_equally_often_with_every_variant() -> None:
    words = tiny.words("bench", 90)
    turns = [prompt_of(words[:40], 35), prompt_of(words[:35] + words[:30], 60)]
    variants = [
        Variant("greedy", arm, StepTable(tiny.family(), eager_reason="test"), policy_for(depth)) for arm, depth in ((PLAIN, 0), ("two", 2))
    ]
    bench = Bench(TOKENIZER, turns, variants, repeats=2, answer_tokens=12)
    samples = list(bench.samples())
    assert len(samples) == bench.num_samples == 8
    assert {(s.turn, s.repeat, s.arm) for s in samples} == {(t, r, a) for t in (0, 1) for r in (0, 1) for a in (PLAIN, "two")}
    assert all(s.draft_stats.deepest == (2 if s.arm == "two" else 0) for s in samples)
    assert all(
        s.seconds > 0 and s.cpu_seconds > 0 and s.tokens == s.draft_stats.rounds + sum(s.draft_stats.accepted) == 11 for s in samples
    )


def test_a_summary_pools_turns_and_compares_within_repeats() -> None:
    samples = [sample(0, "deep", 30, 1.0, 2, 1), sample(0, PLAIN, 10, 1.0), sample(1, PLAIN, 10, 2.0), sample(1, "deep", 20, 2.0, 1, 1)]
    samples += [sample(0, PLAIN, 30, 1.0)]
    assert rates(samples, "greedy", PLAIN) == [20, 5]
    assert rates(samples, "greedy", PLAIN, "cpu_seconds") == [10, 2.5]
    plain, deep = summary(samples)
    assert (plain["arm"], plain["ratio_to_plain"], plain["depths"]) == (PLAIN, 1, [3])
    assert (deep["tok_per_s"], deep["ratio_to_plain"], deep["tokens_per_round"]) == (20, (1.5 + 2) / 2, 25)
    assert (deep["drafted"], deep["accepted"], deep["depths"]) == ([2, 1], [2, 0], [0, 1, 1])


@pytest.mark.parametrize("context_tokens", [600, 1500])
def test_the_prompts_are_one_conversation_of_about_the_requested_length(context_tokens: int) -> None:
    turns = prompts(TOKENIZER, Prompter(TOKENIZER, Template.load(DEMO_MODEL)), context_tokens)
    assert len(turns) == 5
    assert abs(len(turns[0].tokens) - context_tokens) < 150
    for one, following in pairwise(turns):
        assert following.tokens[: one.message_end] == one.tokens[: one.message_end]


def test_the_command_measures_the_bundled_model() -> None:
    options = ["--context", "500", "--repeats", "1", "--answer-tokens", "6", "--draft-depth", "1", "--json"]
    command = [sys.executable, "-m", "forerun.cli", "bench", "decode", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environ_without_settings())
    stats = json.loads(ran.stdout)
    assert (stats["model"], stats["draft_depth"]) == ("demo-model", 1)
    assert [(row["sampling"], row["arm"]) for row in stats["results"]] == [
        (sampling, a) for sampling in ("greedy", "sampled") for a in (PLAIN, "draft")
    ]
    assert all(row["tok_per_s"] > 0 for row in stats["results"])

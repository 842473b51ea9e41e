"""How answers are compared that part where two tokens were as good as equal; and the benchmark runs through here in its tiny form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import modules from their folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def answer(*tokens: tuple[str, dict[str, float]]) -> dict[str, Any]:
    return {"tokens": list(tokens)}


FIRST = ("a", {"a": -0.10, "b": -3.0})
AGAIN = ("a", {"a": -0.12, "b": -3.1})


def test_answers_that_are_equal() -> None:
    from on_gpu.restarts import compared

    found = compared(answer(FIRST, FIRST), answer(AGAIN, AGAIN))
    assert found == {"equal_tokens": 2, "of_tokens": 2, "largest_difference": pytest.approx(0.1), "diverged_gap": None}


@pytest.mark.parametrize(("here", "gap"), [(-0.9, 0.2), (-0.7, 0.15)])
def test_where_answers_part_the_larger_of_the_two_gaps_counts(here: float, gap: float) -> None:
    from on_gpu.restarts import compared

    one, other = ("x", {"x": -0.7, "y": here}), ("y", {"y": -0.7, "x": -0.85})
    found = compared(answer(FIRST, one, FIRST), answer(AGAIN, other, AGAIN))
    assert (found["equal_tokens"], found["of_tokens"], found["diverged_gap"]) == (1, 3, pytest.approx(gap))


def test_a_token_that_was_not_among_the_likeliest_is_at_least_as_far_as_these() -> None:
    from on_gpu.restarts import compared

    found = compared(answer(("x", {"x": -0.1, "z": -7.0})), answer(("y", {"y": -0.1, "x": -0.2})))
    assert found["diverged_gap"] == pytest.approx(6.9)


def test_a_turn_is_too_far_off_beyond_four_times_the_largest_difference() -> None:
    from on_gpu.restarts import judged

    turns = [{"turn": name, "largest_difference": 0.1, "diverged_gap": gap} for name, gap in (("A1", None), ("A2", 0.39), ("A3", 0.41))]
    found = judged(turns)
    assert (found["bound"], found["equal"], found["too_far"]) == (pytest.approx(0.4), 1, ["A3"])


def test_the_larger_tokenizer_encodes_as_before_and_can_write_every_token() -> None:
    import tokenizers

    from forerun.models.load import DEMO_MODEL
    from on_gpu.checkpoint import tokenizer

    plain = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    larger = tokenizers.Tokenizer.from_str(json.dumps(tokenizer(9000)))
    text = "<|im_start|>user\nRead w8999, def add(a, b): ü 🙂<|im_end|>"
    assert larger.encode(text).ids == plain.encode(text).ids
    assert (larger.get_vocab_size(), larger.decode([8999])) == (9000, " w8999")


@pytest.mark.long
def test_every_part_runs(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "benchmarks/gpu_server.py", "--tiny", "--limit-s", "560", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True, timeout=600)
    sections = json.loads(out.read_text())["sections"]
    bad = {
        f"{s}/{n}"
        for s, parts in sections.items()
        for n, part in parts.items()
        if isinstance(part, dict) and {"failed", "left_out"} & part.keys()
    }
    assert bad == set()
    assert [talk["equal"] for talk in sections["restarts"].values()] == [5] * 5
    assert sections["agents"]["agents"]["errors"] == []
    assert sections["commands"]["demo_small"]["faults"] == []

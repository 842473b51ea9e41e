"""Results of a demonstration: a sentence for people, and all figures for the result file. Knows no terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from forerun.demo.compare import Verdict
from forerun.demo.turns import Turn

_OMITTED = ("url", "pid", "bank_dir")  # fields of the start-up line that differ in every run


def finding(turns: Sequence[Turn], verdicts: Sequence[Verdict]) -> str:
    """The tokens and time that stored state saved after the first turn, and how many answers are the same."""
    later = turns[1:]
    reused = sum(turn.answer.report["reused_tokens"] for turn in later)
    prompted = sum(turn.answer.usage["prompt_tokens"] for turn in later)
    ttft_s = sum(turn.answer.report["ttft_s"] for turn in later)
    bypass_ttft_s = sum(turn.bypass.report["ttft_s"] for turn in later)
    num_same = sum(verdict.is_same for verdict in verdicts)
    return (
        f"After the first turn {reused:,} of {prompted:,} prompt tokens were reused: {ttft_s:.2f} s until the first tokens "
        f"instead of {bypass_ttft_s:.2f} s. {num_same} of {len(turns)} answers are the same as without stored state."
    )


def as_json(
    scale: str, server: dict[str, Any], turns: Sequence[Turn], verdicts: Sequence[Verdict], faults: Sequence[str]
) -> dict[str, Any]:
    """The content of the result file. server: its start-up line."""
    return {
        "scale": scale,
        "versions": {name: version(name) for name in ("forerun", "mlx")},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "processor": platform.machine(), "num_cpus": os.cpu_count()},
        "server": {name: value for name, value in server.items() if name not in _OMITTED},
        "turns": [_turn(turn, verdict) for turn, verdict in zip(turns, verdicts, strict=True)],
        "faults": list(faults),
    }


def _turn(turn: Turn, verdict: Verdict) -> dict[str, Any]:
    about = {"turn": turn.step.name, "path": turn.step.path, "same": asdict(verdict)}
    return {**about, "answer": asdict(turn.answer), "bypass": asdict(turn.bypass)}

"""What was seen in a demonstration: one plain sentence for people, and all figures for the result file. Knows no terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from forerun.demo.compare import Verdict
from forerun.demo.turns import Turn

# Of a server's start-up line, what says nothing of the figures.
PASSING = ("url", "pid", "bank_dir")


def finding(turns: Sequence[Turn], verdicts: Sequence[Verdict]) -> str:
    """What the turns after the first saved, and whether the answers are the same."""
    later = turns[1:]
    reused = sum(turn.answer.report["reused_tokens"] for turn in later)
    asked = sum(turn.answer.usage["prompt_tokens"] for turn in later)
    waited_s = sum(turn.answer.report["ttft_s"] for turn in later)
    without_s = sum(turn.bypass.report["ttft_s"] for turn in later)
    num_same = sum(verdict.is_same for verdict in verdicts)
    return (
        f"After the first turn {reused:,} of {asked:,} prompt tokens were not read again: {waited_s:.2f} s until the first tokens "
        f"instead of {without_s:.2f} s. {num_same} of {len(turns)} answers are the same as without stored state."
    )


def as_json(
    scale: str, server: dict[str, Any], turns: Sequence[Turn], verdicts: Sequence[Verdict], faults: Sequence[str]
) -> dict[str, Any]:
    """The content of the result file. server: its start-up line."""
    return {
        "scale": scale,
        "versions": {name: version(name) for name in ("forerun", "mlx")},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "processor": platform.machine(), "num_cpus": os.cpu_count()},
        "server": {name: value for name, value in server.items() if name not in PASSING},
        "turns": [_turn(turn, verdict) for turn, verdict in zip(turns, verdicts, strict=True)],
        "faults": list(faults),
    }


def _turn(turn: Turn, verdict: Verdict) -> dict[str, Any]:
    kept = {"turn": turn.step.name, "path": turn.step.path, "same": asdict(verdict)}
    return {**kept, "answer": asdict(turn.answer), "bypass": asdict(turn.bypass)}

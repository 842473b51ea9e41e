"""Draws docs/five-turns.svg from benchmarks/results/five_turns.json: `python -m tools.five_turns_figure`.

The picture has its own background, and a dark variant for readers with a dark colour scheme.
tests/tools/test_five_turns_figure.py checks that the committed picture is the one of the committed result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "five_turns.json"
FIGURE = ROOT / "docs" / "five-turns.svg"

WIDTH, TOP, ROW, GAP, BAR, LEFT, BAR_WIDTH = 760, 78, 46, 26, 15, 250, 430
SOURCES = {"cold": "first turn", "ram": "state from RAM", "ssd": "state from SSD"}
STOPS = {"ssd, SIGTERM": "server stopped (SIGTERM) and started again", "ssd, kill -9": "server killed (kill -9) and started again"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.name { font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
.page { fill: #ffffff; stroke: #d1d9e0 }
.with { fill: #0969da }
.without { fill: #afb8c1 }
.stop { stroke: #cf222e; stroke-dasharray: 4 3 }
.stopped { font-size: 12px; fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.small { fill: #9198a1 }
.page { fill: #0d1117; stroke: #3d444d }
.with { fill: #4493f8 }
.without { fill: #656c76 }
.stop { stroke: #ff7b72 }
.stopped { fill: #ff7b72 }
}
"""


def figure(result: dict[str, Any]) -> str:
    """The picture of a result, as SVG: two bars a turn, seconds to the first token with and without stored state."""
    turns = result["turns"]
    longest_s = max(seconds(turn[variant]) for turn in turns for variant in ("answer", "bypass"))
    rows, y = list[str](), TOP
    for turn in turns:
        if turn["path"] in STOPS:
            rows += stop(y, STOPS[turn["path"]])
            y += GAP
        rows += row(y, turn, BAR_WIDTH / longest_s)
        y += ROW
    height = y + 44
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(summary(turns))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        text(20, 30, "Seconds to the first token of five turns of one conversation", "title"),
        *legend(50),
    )
    foot = (text(20, y + 8, same(turns), "small"), text(20, y + 26, setting(result), "small"), "</svg>")
    return "\n".join([*head, *rows, *foot]) + "\n"


def row(y: int, turn: dict[str, Any], per_second: float) -> Iterator[str]:
    """The name of a turn, what it reused, and its two bars."""
    report, prompt_tokens = turn["answer"]["report"], turn["answer"]["usage"]["prompt_tokens"]
    yield text(20, y + 13, turn["turn"], "name")
    yield text(48, y + 13, SOURCES[report["source"]])
    yield text(48, y + 30, f"{report['reused_tokens']:,} of {prompt_tokens:,} tokens reused", "small")
    for line, (variant, kind) in enumerate((("answer", "with"), ("bypass", "without"))):
        shown_s, top = seconds(turn[variant]), y + line * (BAR + 2)
        yield bar(LEFT, top, max(2.0, shown_s * per_second), kind)
        yield text(LEFT + shown_s * per_second + 6, top + 12, f"{shown_s:.2f}", "small")


def stop(y: int, words: str) -> Iterator[str]:
    """A line across the picture: the server was restarted here."""
    yield f'<line class="stop" x1="20" x2="{WIDTH - 20}" y1="{y - 1}" y2="{y - 1}"/>'
    yield text(LEFT, y + 13, words, "stopped")


def legend(y: int) -> Iterator[str]:
    """What the two colours mean."""
    for x, kind, words in ((20, "with", "forerun"), (108, "without", "without stored state: the whole prompt is prefilled")):
        yield bar(x, y, 12, kind)
        yield text(x + 18, y + 12, words, "small")


def summary(turns: list[dict[str, Any]]) -> str:
    """The picture in words."""
    times = (f"{turn['turn']} {seconds(turn['answer']):.2f} s instead of {seconds(turn['bypass']):.2f} s" for turn in turns)
    return f"Time to first token with and without stored state: {', '.join(times)}"


def same(turns: list[dict[str, Any]]) -> str:
    """Whether stored state changed an answer."""
    differing = [turn["turn"] for turn in turns if not turn["same"]["is_same"]]
    end = f"differ in {', '.join(differing)}." if differing else "are equal in every turn, token for token."
    return f"Both answers {end} A new process also warms up in its first turn (A1, A2, A4)."


def setting(result: dict[str, Any]) -> str:
    """What it was measured on."""
    machine, server = result["machine"], result["server"]
    kernels = server["kernels"]
    return f"{server['model']}, {machine['num_cpus']} CPU cores, {kernels}. Data: {RESULT.relative_to(ROOT)}"


def seconds(variant: dict[str, Any]) -> float:
    """Time to the first token."""
    return float(variant["report"]["ttft_s"])


def bar(x: float, y: float, width: float, kind: str) -> str:
    """A bar from `x` to the right."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="2"/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text whose baseline is at `y`."""
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x:.4g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    FIGURE.write_text(figure(json.loads(RESULT.read_text())))

"""The table of the report for one or more arms, and checks of the result. Pure: results in, text and verdicts out."""

from __future__ import annotations

from statistics import median
from typing import Any

HEAD = ("turn", "path", "context", "prefill tok/s", "decode tok/s", "first token s", "paged blocks", "compiled steps")
BAND = (0.95, 1.05)
FAULT_FACTOR = 1.3


def markdown(result: dict[str, Any]) -> str:
    """One row a turn; the arms in the order of the result, with arrows between."""
    turns = zip(*(arm["sampled"] for arm in result["arms"].values()), strict=True)
    lines = [HEAD, ("---",) * len(HEAD), *(row(turn) for turn in turns)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(arms: tuple[dict[str, Any], ...]) -> tuple[str, ...]:
    """The row of one turn, over all arms."""
    reports = [arm["report"] for arm in arms]
    sources = {report["source"] for report in reports}
    return (
        arms[0]["turn"],
        sources.pop() if len(sources) == 1 else arrows([report["source"] for report in reports]),
        arrows([f"{arm['usage']['prompt_tokens']:,}" for arm in arms]),
        arrows([_speed(report["prefill_tok_per_s"]) for report in reports]),
        arrows([_speed(report["decode_tok_per_s"]) for report in reports]),
        arrows([f"{report['ttft_s']:.2f}" for report in reports]),
        arrows([str(report.get("paged_blocks", "?")) for report in reports]),
        arrows([f"{report.get('compiled_steps', '?')}/{report.get('steps', '?')}" for report in reports]),
    )


def arrows(cells: list[str]) -> str:
    """The cells of all arms, or the one that they share."""
    return cells[0] if len(set(cells)) == 1 else " → ".join(cells)


def checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Checks of the result, each with its value and whether it holds."""
    found, arms = [], result["arms"]
    if "asked" in arms:
        found.append(_check("all steps of arm asked compiled", _compiled_frac(arms["asked"]), lambda value: value == 1.0))
        for rate, interval in result["pairs"]["ratios"].items():
            found.append(_check(f"{rate}: SSD over RAM", interval, lambda value: BAND[0] <= value["low"] and value["high"] <= BAND[1]))
        found.append(_check("greedy answers from SSD and RAM are equal", result["pairs"]["answers_equal"], bool))
    texts = [[turn["text"] for turn in arm["greedy"]] for arm in arms.values()]
    found.append(_check("greedy answers of all arms are equal", all(text == texts[0] for text in texts), bool))
    if {"asked", "fault"} <= arms.keys():
        rates = ("prefill_tok_per_s", "decode_tok_per_s")
        found += [_check(f"{rate} after SSD restores: asked over fault", _factor(arms, rate), _is_slower) for rate in rates]
        flagged = {arm: arms[arm]["flagged"] for arm in ("asked", "fault")}
        found.append(_check("faults that the request log shows", flagged, lambda value: value == {"asked": [], "fault": ["A2", "A4"]}))
    return found


def _is_slower(factor: float) -> bool:
    return factor >= FAULT_FACTOR


def _check(what: str, value: Any, holds: Any) -> dict[str, Any]:
    return {"what": what, "value": value, "holds": bool(holds(value))}


def _compiled_frac(arm: dict[str, Any]) -> float:
    reports = [turn["report"] for turn in arm["sampled"] + arm["greedy"]]
    return float(sum(report["compiled_steps"] for report in reports) / sum(report["steps"] for report in reports))


def _factor(arms: dict[str, Any], rate: str) -> float:
    """Median over the turns that came from SSD, greedy and sampled."""
    both = [zip(arms["asked"][sampling], arms["fault"][sampling], strict=True) for sampling in ("sampled", "greedy")]
    return median(a["report"][rate] / b["report"][rate] for sampling in both for a, b in sampling if a["path"] == "ssd")


def _speed(tok_per_s: float | None) -> str:
    return "-" if tok_per_s is None else f"{tok_per_s:,.1f}"

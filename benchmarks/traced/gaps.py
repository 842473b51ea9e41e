"""What a trace shows of the decoding requests: what happened between two rounds of each. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

OTHER_THAN_ROUNDS = ("piece", "capture", "admit", "store")


def in_gaps(trace: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """For every two rounds of a request that follow each other: what else happened between."""
    since: dict[str, list[dict[str, Any]]] = {}
    for each in trace:
        if each["kind"] != "round":
            for between in since.values():
                between.append(each)
            continue
        for request in each["requests"]:
            if request in since:
                yield since[request]
            since[request] = []


def summary(trace: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each kind the most in one gap, and the seconds of those in gaps; the seconds of rounds."""
    gaps, counts, seconds = list(in_gaps(trace)), Counter[str](), defaultdict[str, list[float]](list)
    for gap in gaps:
        counts |= Counter(each["kind"] for each in gap)  # of each kind the larger number
        for each in gap:
            seconds[each["kind"]].append(each["stop_s"] - each["start_s"])
    seconds["round"] = [each["stop_s"] - each["start_s"] for each in trace if each["kind"] == "round"]
    kinds = (*OTHER_THAN_ROUNDS, "round")
    most = {kind: counts[kind] for kind in OTHER_THAN_ROUNDS}
    return {"gaps": len(gaps), "most_in_a_gap": most, "seconds": {kind: spread(seconds[kind]) for kind in kinds}}


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p99 and p100; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p99": ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], "p100": ordered[-1]}

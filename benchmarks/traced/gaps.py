"""What a trace shows of the decoding requests: what happened between two rounds of each. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

OTHER_THAN_ROUNDS = ("piece", "capture", "admit", "store")


def in_gaps(trace: Sequence[dict[str, Any]]) -> Iterator[Counter[str]]:
    """For every two rounds of a request that follow each other: how often something else happened between, by kind."""
    since: dict[str, Counter[str]] = {}
    for each in trace:
        if each["kind"] != "round":
            for counts in since.values():
                counts[each["kind"]] += 1
            continue
        for request in each["requests"]:
            if request in since:
                yield since[request]
            since[request] = Counter()


def summary(trace: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The most of each kind in one gap, and how long each kind took."""
    gaps = list(in_gaps(trace))
    return {
        "gaps": len(gaps),
        "most_in_a_gap": {kind: max((gap[kind] for gap in gaps), default=0) for kind in OTHER_THAN_ROUNDS},
        "seconds": {
            kind: spread([e["stop_s"] - e["start_s"] for e in trace if e["kind"] == kind]) for kind in (*OTHER_THAN_ROUNDS, "round")
        },
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p99 and p100; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p99": ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], "p100": ordered[-1]}

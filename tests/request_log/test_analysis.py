"""The analysis of a log: groups, faults, slow requests and their causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.serve.engine_double import REPORT

from forerun.request_log.analysis import Outlier, Sharing, faults_of, summarise
from forerun.request_log.entry import Entry
from forerun.values import Report, Usage

PAGED = "paged(64)"
HEALTHY = replace(REPORT, source="ram", computed_tokens=1000, prefill_tok_per_s=400.0, decode_tok_per_s=50.0, ttft_s=2.5, queue_s=0.0)
HEALTHY = replace(HEALTHY, step_kind="compiled", steps=100, compiled_steps=100, eager_steps={}, tokens_per_round=2.0)
FAULTY = replace(HEALTHY, source="ssd", prefill_layout=PAGED, layout=PAGED, paged_blocks=400)


def entry(context_tokens: int, report: Report | None = HEALTHY, answer_tokens: int = 200, **fields: Any) -> Entry:
    usage = Usage(context_tokens, context_tokens - report.computed_tokens, answer_tokens, 0) if report else None
    filled = Entry("2026-11-29T20:00:00+00:00", "id", "demo", "", "stop", None, 9.0, context_tokens, None, usage, report, None)
    return replace(filled, **fields)


RAM = [entry(20_000 + 500 * i) for i in range(6)]


def only(entries: list[Entry]) -> Outlier:
    (outlier,) = summarise(entries).outliers
    return outlier


def test_equal_requests_are_no_outliers() -> None:
    assert summarise(RAM).outliers == ()


def test_the_original_fault_is_found_from_the_log_alone() -> None:
    slow = replace(FAULTY, prefill_tok_per_s=60.0, decode_tok_per_s=32.0, ttft_s=16.0, compiled_steps=0, eager_steps={"requested": 100})
    outlier = only([*RAM, entry(21_200, slow)])
    assert (outlier.prefill_ratio, outlier.decode_ratio, outlier.ttft_ratio) == pytest.approx((0.15, 0.64, 6.4))
    assert outlier.faults == ("prefilled in paged(64), requested contiguous", "decoded in paged(64), requested contiguous")
    assert outlier.causes == ("100 of 100 steps ran eager (requested)",)


def test_too_few_peers_give_no_outlier() -> None:
    slow = entry(21_200, replace(HEALTHY, decode_tok_per_s=1.0))
    assert summarise([*RAM[:3], slow]).outliers == ()
    assert only([*RAM[:4], slow]).served.entry == slow


def test_a_short_wait_is_no_cause() -> None:
    slow = replace(HEALTHY, decode_tok_per_s=1.0, ttft_s=0.05, queue_s=0.04)
    assert only([*RAM, entry(21_200, slow)]).causes == ()


def test_another_layout_than_requested_is_a_fault_at_any_speed() -> None:
    outlier = only([*RAM, entry(20_900, FAULTY)])
    assert len(outlier.faults) == 2
    assert only([entry(20_000, FAULTY)]).ttft_ratio is None  # and without peers


def test_requested_pages_are_no_fault() -> None:
    chosen = replace(HEALTHY, layout=PAGED, requested_layout=PAGED)
    assert faults_of(chosen) == ()
    outlier = only([*RAM, entry(20_100, replace(chosen, decode_tok_per_s=30.0))])
    assert outlier.causes == ("decoded in paged(64), as chosen for this length",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"source": "cold", "reason": "nothing begins like it"},
            "cold: nothing begins like it",
        ),
        ({"reason": "set aside: a record"}, "set aside: a record"),
        ({"computed_tokens": 9000}, "9,000 tokens to prefill, its peers had 1,000"),
        ({"eager_steps": {"width": 30}}, "30 of 100 steps ran eager (width)"),
        ({"eager_steps": {"batch": 20, "new batch": 8}}, "nothing in the log explains it"),
        ({"tokens_per_round": 1.0}, "1.00 tokens per round, its peers had 2.00"),
        ({"sequences_per_round": 3.0}, "3.0 sequences a round, its peers had 1.5"),
        ({"others_s": 7.0}, "7.0 s passed for other requests"),
        ({}, "nothing in the log explains it"),
    ],
)
def test_why_the_first_token_was_late(changes: dict[str, Any], reason: str) -> None:
    outlier = only([*RAM, entry(21_100, replace(HEALTHY, ttft_s=10.0, **changes))])
    assert (outlier.ttft_ratio, outlier.reason) == (4.0, reason)


def test_what_ran_beside_others_is_summed_up() -> None:
    alone = replace(HEALTHY, others_s=0.0, sequences_per_round=1.0, rows_per_round=2.0)
    assert summarise([entry(20_000, alone)]).sharing is None
    beside = [replace(alone, others_s=0.5 * n, sequences_per_round=float(n), rows_per_round=2.0 * n) for n in (2, 3, 8)]
    forked = replace(beside[0], forked_from="s2")
    summary = summarise([entry(20_000, report) for report in (alone, *beside[1:], forked)])
    assert summary.sharing == Sharing(3, 3.0, 6.0, 1.5, 1)


def test_the_queue_makes_no_request_late() -> None:
    assert summarise([*RAM, entry(21_100, replace(HEALTHY, ttft_s=62.5, queue_s=60.0))]).outliers == ()
    late = only([*RAM, entry(21_100, replace(HEALTHY, ttft_s=70.0, queue_s=60.0))])
    assert (late.ttft_ratio, late.reason) == (4.0, "nothing in the log explains it")
    (group,) = summarise([entry(20_000, replace(HEALTHY, ttft_s=2.5 + queue_s, queue_s=queue_s)) for queue_s in (1.0, 3.0, 40.0)]).groups
    assert (group.queue_s, group.ttft_s) == (3.0, 2.5)


@pytest.mark.parametrize(
    "other",
    [
        entry(40_000, replace(HEALTHY, ttft_s=9.0)),  # a longer context
        entry(21_000, replace(HEALTHY, ttft_s=2.9)),  # hardly later
        entry(21_000, replace(HEALTHY, decode_tok_per_s=5.0), answer_tokens=3),  # too few tokens to measure
        entry(21_000, replace(HEALTHY, prefill_tok_per_s=5.0, computed_tokens=10)),  # few tokens are always slow
        entry(21_000, replace(HEALTHY, decode_tok_per_s=5.0), model="another"),
        entry(21_000, replace(HEALTHY, decode_tok_per_s=5.0, numerics="fast")),
    ],
)
def test_requests_that_are_no_peers(other: Entry) -> None:
    assert summarise([*RAM, other]).outliers == ()


def test_groups_count_each_source_and_layout() -> None:
    mixed = replace(HEALTHY, layout=PAGED, requested_layout=PAGED, compiled_steps=50, eager_steps={"width": 50})
    summary = summarise([*RAM, entry(30_000, mixed), entry(30_500, replace(FAULTY, prefill_tok_per_s=None))])
    assert [(g.source, g.layout, g.num) for g in summary.groups] == [
        ("ram", "contiguous", 6),
        ("ram", "contiguous, then paged(64)", 1),
        ("ssd", PAGED, 1),
    ]
    first, second, third = summary.groups
    assert (first.min_context_tokens, first.max_context_tokens, first.compiled_frac) == (20_000, 22_500, 1.0)
    assert (first.prefill_tok_per_s, first.decode_tok_per_s, first.ttft_s) == (400.0, 50.0, 2.5)
    assert (second.compiled_frac, third.prefill_tok_per_s) == (0.5, None)


def test_those_that_were_not_served_are_counted() -> None:
    failed = entry(100, None, outcome="error", error="NumericsError: no numbers")
    gone = entry(100, None, outcome="cancelled", error=None)
    assert summarise([*RAM, failed, gone, gone]).unserved == {"NumericsError: no numbers": 1, "cancelled": 2}


def test_a_long_log_is_analysed_in_good_time() -> None:
    entries = [entry(1000 + i % 5000) for i in range(20_000)]
    assert summarise(entries).outliers == ()

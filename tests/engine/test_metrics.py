"""Metrics are named by Prometheus' conventions: the rules of `promtool check metrics`, and more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.engine_double import DONE, Engine

from forerun.engine.metrics import Metrics
from forerun.engine.request import EndedRequest

NAME = re.compile(r"forerun(_[a-z][a-z0-9]*)+")
OTHER_UNITS = re.compile(r"_(ms|millis|milliseconds|us|microseconds|minutes|hours|kb|mb|gb|kib|mib|gib|kilobytes|megabytes|percent)(_|$)")
TYPES = re.compile(r"_(counter|gauge|histogram|summary)(_|$)")


def families() -> Iterator[Metric]:
    """All families, of an engine that has served a request."""
    metrics = Metrics(Engine().health, {"mlx_active_bytes": ("MLX memory, active", lambda: 1.0)})
    metrics.count(EndedRequest(cast(Any, None), "stop", DONE.usage, DONE.report, None))
    yield from text_string_to_metric_families(generate_latest(metrics.registry).decode())


def faults(metric: Metric) -> list[str]:
    """The rules that a metric's name, help or labels break."""
    samples = {sample.name for sample in metric.samples if not sample.name.endswith("_created")}
    rules = {
        "is snake_case and begins with forerun": NAME.fullmatch(metric.name),
        "is explained": metric.documentation and not metric.documentation.endswith("."),
        "is in seconds and bytes": not OTHER_UNITS.search(metric.name),
        "does not name its type": not TYPES.search(metric.name),
        "ends in _total if it counts": (metric.type == "counter") == all(name.endswith("_total") for name in samples),
        "is in seconds if it is a histogram": metric.type != "histogram" or metric.name.endswith("_seconds"),
        "has labels in snake_case": all(re.fullmatch(r"[a-z][a-z_]*", label) for sample in metric.samples for label in sample.labels),
    }
    return [rule for rule, is_met in rules.items() if not is_met]


def test_every_metric_follows_the_rules() -> None:
    found = {metric.name: faults(metric) for metric in families() if not metric.name.endswith("_created")}
    assert len(found) > 15
    assert {name: broken for name, broken in found.items() if broken} == {}


def test_what_requests_shared_is_counted() -> None:
    metrics = Metrics(Engine().health, {})
    reports = [replace(DONE.report, rounds=4, sequences_per_round=2.5, rows_per_round=6.0, others_s=3.0, forked_from=s) for s in ("", "s2")]
    for report in reports:
        metrics.count(EndedRequest(cast(Any, None), "stop", DONE.usage, report, None))
    names = ("round_sequences_total", "round_rows_total", "forks_total", "others_seconds_sum")
    assert [metrics.registry.get_sample_value(f"forerun_{name}") for name in names] == [20.0, 48.0, 1.0, 6.0]


@pytest.mark.parametrize("name", ["forerun_restore_ms", "Forerun_restore_seconds", "forerun_steps_total", "forerun_steps_counter"])
def test_a_wrong_name_is_detected(name: str) -> None:
    metric = Metric(name, "Help", "gauge")
    metric.add_sample(name, {}, 1.0)
    assert faults(metric)

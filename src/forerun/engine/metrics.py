"""Prometheus metrics of an engine, named by Prometheus' conventions. Knows values, not how they come about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forerun.engine.request import EndedRequest
from forerun.values import Health, Report, Usage

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
Gauges = Mapping[str, tuple[str, Callable[[], float]]]  # by name: help text, and the function that returns the value


class Metrics:
    """Metrics of one engine in a registry of their own."""

    def __init__(self, health: Callable[[], Health], gauges: Gauges) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("forerun_requests", "Requests by outcome", "outcome")
        self._prompt = self._counter("forerun_prompt_tokens", "Prompt tokens, reused or computed", "kind")
        self._answer = self._counter("forerun_completion_tokens", "Generated tokens")
        self._restores = self._counter(
            "forerun_restores", "Requests by the source of their state and the layout of their cache", "source", "layout"
        )
        self._rounds = self._counter("forerun_rounds", "Decoding rounds by number of drafted tokens", "depth")
        self._drafts = self._counter("forerun_draft_tokens", "Drafted tokens by depth in the round and outcome", "depth", "outcome")
        self._steps = self._counter("forerun_decode_steps", "Decoding passes: compiled, or the reason for running eager", "kind")
        self._sequences = self._counter("forerun_round_sequences", "Sequences in each round of each request, its own included")
        self._rows = self._counter("forerun_round_rows", "Rows verified in each round of each request, its own included")
        self._forks = self._counter("forerun_forks", "Requests whose state was copied in RAM from another conversation")
        self._queue = self._histogram("forerun_queue_seconds", "Time in the queue")
        self._others = self._histogram("forerun_others_seconds", "Time of a running request that passed for others alone")
        self._restore = self._histogram("forerun_restore_seconds", "Time to restore stored state")
        self._ttft = self._histogram("forerun_ttft_seconds", "Time from arrival to the first token")
        self.registry.register(_HealthCollector(health))
        for name, (help_, read) in gauges.items():
            Gauge(f"forerun_{name}", help_, registry=self.registry).set_function(read)

    def count(self, ended: EndedRequest) -> None:
        """Count an ended request; if it was served to its end, its tokens, steps and times too."""
        self._requests.labels(ended.outcome).inc()
        if ended.error is None and ended.usage and ended.report:
            self._count_cost(ended.usage, ended.report)

    def _count_cost(self, usage: Usage, report: Report) -> None:
        self._prompt.labels("reused").inc(report.reused_tokens)
        self._prompt.labels("computed").inc(report.computed_tokens)
        self._answer.inc(usage.completion_tokens)
        self._restores.labels(report.source, report.layout).inc()
        self._steps.labels("compiled").inc(report.compiled_steps)
        for reason, steps in report.eager_steps.items():
            self._steps.labels(reason).inc(steps)
        self._count_drafts(report)
        self._count_others(report)
        self._queue.observe(report.queue_s)
        self._restore.observe(report.restore_s)
        self._ttft.observe(report.ttft_s)

    def _count_others(self, report: Report) -> None:
        self._sequences.inc(report.rounds * (report.sequences_per_round or 0))
        self._rows.inc(report.rounds * (report.rows_per_round or 0))
        self._forks.inc(bool(report.forked_from))
        self._others.observe(report.others_s)

    def _count_drafts(self, report: Report) -> None:
        for depth, rounds in enumerate(report.depths):
            self._rounds.labels(depth).inc(rounds)
        for depth, (drafted, accepted) in enumerate(zip(report.drafted, report.accepted, strict=True), start=1):
            self._drafts.labels(depth, "accepted").inc(accepted)
            self._drafts.labels(depth, "rejected").inc(drafted - accepted)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(name, help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str) -> Histogram:
        return Histogram(name, help_, buckets=_SECONDS, registry=self.registry)


class _HealthCollector(Collector):
    """Gauges of one health report per scrape."""

    def __init__(self, health: Callable[[], Health]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        bank = health.bank
        for name, help_, value in (
            ("requests_running", "Requests being served", health.running),
            ("requests_waiting", "Requests in the queue", health.waiting),
            ("bank_pending_writes", "Records not yet durable on disk", bank.pending_writes),
            ("bank_ram_bytes", "Size of the conversations in RAM", bank.ram_bytes),
            ("bank_disk_bytes", "Size of the bank's folder", bank.disk_bytes),
            ("bank_pinned_bytes", "Size of the pinned conversations on disk", bank.pinned_bytes),
            ("bank_quarantined_records", "Damaged records in quarantine", bank.quarantined),
        ):
            yield GaugeMetricFamily(f"forerun_{name}", help_, value)

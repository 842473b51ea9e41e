"""Pages in use and free in /metrics; eviction frees pages."""

from __future__ import annotations

from contextlib import closing

from prometheus_client import generate_latest
from tests import tiny
from tests.talking import opened, turn

from forerun.engine.assemble import gauges_of
from forerun.engine.metrics import Metrics
from forerun.state.layout import Paged
from forerun.values import Health


def test_pages_are_counted_and_freed_on_eviction() -> None:
    with closing(opened(None)) as bank:
        served = turn(bank, tiny.words("pages", 900), layout=Paged(64))
        pages = served.restored.cache.store.num_blocks
        metrics = Metrics(lambda: Health("ok", True, (), 0, 0, bank.stats.health()), gauges_of(bank))
        assert metrics.registry.get_sample_value("forerun_paged_blocks") == pages == 16
        del served
        turn(bank, tiny.words("others", 900), layout=Paged(64))
        assert bank.paged_blocks == (2 * pages, 0)
        bank._ram_limit_bytes = 0
        assert bank.trim() == 2
        assert bank.paged_blocks == (0, 0)
        assert b"forerun_paged_blocks_free 0.0" in generate_latest(metrics.registry)

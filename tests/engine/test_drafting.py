"""Drafting in reports, /metrics, /health and the log; and its setting."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.talking import IDENTITY, tokenizer
from tests.waiting import LIMIT_S

from forerun.bank.bank import Bank
from forerun.config import Config, load
from forerun.decode.compiled import StepTable
from forerun.decode.depth import WARN_ROUNDS, WARNING, DepthPolicy
from forerun.decode.draft_stats import Round
from forerun.engine import loading
from forerun.engine.local import LocalEngine
from forerun.engine.model import Model
from forerun.engine.worker import Worker
from forerun.errors import ConfigError, ForerunError
from forerun.models.load import DEMO_MODEL
from forerun.state.layout import Limits
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.values import GREEDY, Done, Job, ModelInfo, Report, TokenPrompt

VOCAB = 500
INFO = ModelInfo("fake", "fake", "cpu", "exact", "none", 65536, 0, GREEDY, demo=False)


def model(policy: DepthPolicy, wrong_every: int) -> Model:
    family = FakeFamily(scattered(VOCAB), VOCAB, wrong_every=wrong_every)
    bank = Bank(family.spec, IDENTITY, disk=None, secret=b"secret", ram_limit_bytes=1 << 30)
    prompter = Prompter(tokenizer(), Template.load(DEMO_MODEL))
    return Model(StepTable(family, eager_reason="test"), bank, prompter, policy, Limits(1 << 20, 64), 1 << 40, 8, ())


def engine(policy: DepthPolicy, wrong_every: int = 1 << 20) -> LocalEngine:
    return LocalEngine(INFO, Worker(lambda: model(policy, wrong_every)), {}, log=None, archive_key=b"")


def job(max_tokens: int) -> Job:
    return Job("job", TokenPrompt(tuple(range(1, 60))), GREEDY, max_tokens, (), None, "", "use")


def report(running: LocalEngine, job: Job) -> Report:
    """The report of one request."""

    async def run() -> Report:
        events = [event async for event in await running.submit(job)]
        assert isinstance(events[-1], Done)
        return events[-1].report

    return asyncio.run(run())


def close(running: LocalEngine) -> None:
    asyncio.run(running.close(LIMIT_S))


def test_a_report_counts_drafted_and_accepted_tokens() -> None:
    running = engine(DepthPolicy((3,)))
    served = report(running, job(max_tokens=12))
    # The first token needs no round; 4 + 4 tokens, then the last three, of which two are drafts.
    assert (served.rounds, served.tokens_per_round) == (3, 11 / 3)
    assert (served.drafted, served.accepted, served.depths) == ((3, 3, 2), (3, 3, 2), (0, 0, 1, 2))
    single = report(running, replace(job(max_tokens=1), bank="bypass"))
    assert (single.rounds, single.tokens_per_round, single.drafted, single.accepted, single.depths) == (0, None, (), (), (0,))
    close(running)


def test_metrics_sum_the_reports() -> None:
    running = engine(DepthPolicy((2,)), wrong_every=5)
    served = [report(running, job(max_tokens)) for max_tokens in (20, 31)]
    assert sum(map(sum, (each.accepted for each in served))) < sum(map(sum, (each.drafted for each in served)))
    lines = generate_latest(running.registry).decode().splitlines()
    for depth in (0, 1):
        accepted, drafted = (sum(getattr(each, name)[depth] for each in served) for name in ("accepted", "drafted"))
        assert 0 < accepted <= drafted
        assert f'forerun_draft_tokens_total{{depth="{depth + 1}",outcome="accepted"}} {accepted}.0' in lines
        assert f'forerun_draft_tokens_total{{depth="{depth + 1}",outcome="rejected"}} {drafted - accepted}.0' in lines
    assert f'forerun_rounds_total{{depth="2"}} {sum(each.depths[2] for each in served)}.0' in lines
    close(running)


def fail(policy: DepthPolicy, accepted: int) -> None:
    for _ in range(WARN_ROUNDS):
        policy.observe(100, Round([0] * (accepted + 1), 2, accepted, None))


def test_failing_drafts_are_reported_until_they_recover(caplog: pytest.LogCaptureFixture) -> None:
    policy = DepthPolicy((2,))
    running = engine(policy)
    assert running.health().reasons == ()
    fail(policy, accepted=0)
    assert (running.health().status, running.health().reasons) == ("degraded", (WARNING,))
    with caplog.at_level(logging.WARNING, "forerun"):
        report(running, job(max_tokens=1))
        report(running, job(max_tokens=1))
        fail(policy, accepted=2)
        report(running, job(max_tokens=1))
        assert running.health().status == "ok"
        close(running)
    assert [record.message for record in caplog.records] == [WARNING, "drafts are accepted again"]


async def cancel(running: LocalEngine, job: Job) -> None:
    run = await running.submit(job)
    async for _ in run:
        run.cancel()


def test_a_cancelled_request_latches_nothing() -> None:
    running = engine(DepthPolicy(range(4)))
    for _ in range(3):
        with pytest.raises(ForerunError, match="the client disconnected"):
            asyncio.run(cancel(running, job(max_tokens=2000)))
    served = report(running, replace(job(max_tokens=200), bank="bypass"))
    assert served.drafted[0] > 0
    assert all(served.depths)
    close(running)


@pytest.mark.parametrize(("setting", "choices"), [("auto", (0, 1, 2, 3)), (0, (0,)), (7, (7,)), ("2", (2,))])
def test_the_setting_is_a_depth_or_auto(setting: str | int, choices: tuple[int, ...]) -> None:
    assert loading.policy(load({"draft_depth": setting}), tiny.family())._choices == choices


@pytest.mark.parametrize("setting", ["8", "-1", "some", "1.5"])
def test_another_value_than_a_depth_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"draft_depth = '{setting}'") as caught:
        load({"draft_depth": setting})
    assert "0 (never) to 7" in caught.value.hint


@pytest.mark.parametrize(("setting", "warnings"), [("auto", 1), (2, 1), (0, 0)])
def test_a_checkpoint_without_a_draft_head_runs_without_drafts_and_warns(
    setting: str | int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    family = FakeFamily(scattered(VOCAB), VOCAB)
    family.spec = replace(family.spec, draft_layers=())
    policy = loading.policy(Config.model_validate({"draft_depth": setting}), family)
    assert policy.choose(100, 99) == 0
    assert len(caplog.records) == warnings

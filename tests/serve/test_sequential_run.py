"""A request of several jobs: they run one after the other, and none starts after its client has disconnected."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import pytest
from tests.engine.engines import running
from tests.serve.asking import ask, serving, values
from tests.serve.engine_double import DONE, HELLO, INFO, Engine, Run
from tests.serve.test_leaving import is_free, num_cancelled
from tests.talking import tokenizer
from tests.waiting import until

from forerun.errors import BusyError, ContextLengthError, ForerunError
from forerun.serve.openai_completions import parse
from forerun.serve.sequential_run import SequentialRun
from forerun.values import Done, Job

PATH = "/v1/completions"
TOO_LONG = ContextLengthError("4000", 2048)
JOBS = parse({"prompt": ["a", "b", "c"]}, INFO, id="cmpl-1", tenant="").jobs


class Refusing(Engine):
    """Refuses the job with this index: for ever, or `times` times."""

    def __init__(self, index: int, error: ForerunError = TOO_LONG, times: float = math.inf) -> None:
        super().__init__(*HELLO)
        self._index, self._error, self._times = index, error, times

    async def submit(self, job: Job) -> Run:
        if len(self.jobs) == self._index and self._times > 0:
            self._times -= 1
            raise self._error
        return await super().submit(job)


def test_each_job_is_submitted_when_the_one_before_is_done() -> None:
    async def scenario() -> None:
        engine = Engine(*HELLO)
        run = SequentialRun(engine, await engine.submit(JOBS[0]), JOBS[1:])
        assert [len(engine.jobs) async for event in run if isinstance(event, Done)] == [1, 2, 3]
        assert tuple(engine.jobs) == JOBS

    asyncio.run(scenario())


def test_after_cancelling_no_other_job_is_submitted() -> None:
    async def scenario() -> None:
        engine = Engine(*HELLO)
        run = SequentialRun(engine, await engine.submit(JOBS[0]), JOBS[1:])
        async for event in run:
            if isinstance(event, Done):
                run.cancel()
        assert len(engine.jobs) == 1
        assert engine.runs[0].is_cancelled

    asyncio.run(scenario())


def test_a_refused_job_ends_the_request() -> None:
    body = {"prompt": ["a", "b", "c"]}
    assert ask(Refusing(0), "POST", PATH, json=body | {"stream": True}).status_code == 400
    assert ask(Refusing(1), "POST", PATH, json=body).json()["error"]["code"] == "context_length_exceeded"
    response = values(ask(Refusing(1), "POST", PATH, json=body | {"stream": True}).text)
    assert [frame["choices"][0]["finish_reason"] for frame in response[:-1]] == [None, None, "stop"]
    assert response[-1]["error"]["code"] == "context_length_exceeded"


def test_where_the_queue_is_full_a_later_job_retries() -> None:
    body = {"prompt": ["a", "b", "c"]}
    engine = Refusing(1, BusyError("16 requests wait", retry_after_s=0), times=3)
    assert len(ask(engine, "POST", PATH, json=body).json()["choices"]) == 3
    assert ask(Refusing(0, BusyError("16 requests wait", retry_after_s=0)), "POST", PATH, json=body).status_code == 503
    stopping = Refusing(1, BusyError("the server is stopping", retry_after_s=0))
    stopping.ready = False
    assert ask(stopping, "POST", PATH, json=body).status_code == 503


def test_all_choices_come_in_one_answer() -> None:
    body: dict[str, Any] = {"prompt": ["a", "b"], "n": 2}
    engine = Engine(*HELLO)
    response = ask(engine, "POST", PATH, json=body).json()
    assert [choice["text"] for choice in response["choices"]] == ["Hello"] * 4
    assert response["usage"]["completion_tokens"] == 4 * DONE.usage.completion_tokens
    response = values(ask(engine, "POST", PATH, json=body | {"stream": True}).text)
    assert [frame["choices"][0]["index"] for frame in response] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("later", [{"prompt": [[1], [2] * 5000]}, {"prompt": [[1], [1 << 30]]}, {"prompt": ["a", ""], "n": 2}])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_invalid_later_prompt_is_refused_before_anything_is_computed(later: dict[str, Any], stream: bool) -> None:
    async def scenario() -> None:
        async with running() as rig:
            response = await asyncio.to_thread(ask, rig.engine, "POST", PATH, json=later | {"stream": stream})
            assert (response.status_code, rig.gate.rows) == (400, [])

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_disconnecting_during_the_second_job_frees_a_real_engine(stream: bool) -> None:
    """The first job ends at once, the second would take long, the third is never prefilled."""

    async def scenario() -> None:
        async with running() as rig:
            rig.family.script = lambda position, token, total: min(tokenizer().stop_ids) if position == 2 else 33
            rig.gate.hold(2)
            with serving(rig.engine) as port:
                with socket.create_connection(("127.0.0.1", port)) as client:
                    body = {"prompt": [[1, 2], [4] * 12, [7] * 13], "max_tokens": 2000, "temperature": 0, "stream": stream}
                    client.sendall(posted(json.dumps(body).encode()))
                    await rig.gate.reached(3)
                rig.gate.open()
                await until(lambda: is_free(rig))
                assert (rig.gate.rows[:2], 13 in rig.gate.rows, num_cancelled(rig)) == ([2, 12], False, 1)

    asyncio.run(scenario())


def posted(body: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body

"""A server is stopped or killed in the middle of its work: what it had stored is still there, and intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import httpx
import pytest
from tests.end_to_end.home import Home, home_at
from tests.talking import tokenizer
from tests.waiting import LIMIT_S

Moment = Literal["prefill", "decode", "saving"]
BEGINS: dict[Moment, str] = {"prefill": ": prefill 512/", "decode": '"content":', "saving": "data: [DONE]"}
SUFFIX = 8  # tokens of the generation prompt: the stored conversation resumes before them
OLD: dict[str, Any] = {"messages": [{"role": "user", "content": "What is older than this?"}], "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home_at(tmp_path_factory.mktemp("home"), "--eager") as home:
        home.ask(**OLD)
        home.server.wait_until_written()
        yield home


def long(name: str) -> dict[str, Any]:
    """A request of a new conversation that takes some seconds."""
    text = f"{name}. " + " ".join(f"Line {i} of the file." for i in range(70))
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, "enable_thinking": False}


def lines_while_ended(url: str, body: dict[str, Any], moment: Moment, end: Callable[[], None]) -> list[str]:
    """The lines of a stream whose server `end` ends at `moment`."""
    lines: list[str] = []
    with ThreadPoolExecutor() as pool, httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S) as response:
        ended: list[Future[None]] = []
        try:
            for line in response.iter_lines():
                lines.append(line)
                if not ended and BEGINS[moment] in line and '"role"' not in line:
                    ended.append(pool.submit(end))
        except httpx.RemoteProtocolError:
            lines.append("broken off")
        ended[0].result()
    return lines


@pytest.mark.parametrize(
    ("moment", "is_forced"),
    [
        ("prefill", False),
        pytest.param("prefill", True, marks=pytest.mark.long),
        pytest.param("decode", False, marks=pytest.mark.long),
        ("decode", True),
        pytest.param("saving", False, marks=pytest.mark.long),
        ("saving", True),
    ],
)
def test_ended_during(home: Home, moment: Moment, is_forced: bool) -> None:
    body = long(f"{moment} {is_forced}")
    lines = lines_while_ended(home.server.url, body | {"stream": True}, moment, home.server.kill if is_forced else home.server.stop)
    assert is_forced or lines[-2] == "data: [DONE]", "a running answer is finished"
    home.start()
    assert recomputed(home.ask(**OLD)) <= SUFFIX, "what was stored before is lost"
    again = home.ask(**body)
    if is_forced:
        assert again["choices"] == home.ask(**body, forerun={"bank": "bypass"})["choices"]
    else:
        assert recomputed(again) <= SUFFIX
    assert httpx.get(f"{home.server.url}/health", timeout=LIMIT_S).json()["bank"]["quarantined"] == 0


def recomputed(answer: dict[str, Any]) -> int:
    """Number of tokens computed again after the restart."""
    return int(answer["forerun"]["computed_tokens"])


def test_a_kill_when_the_answer_arrives_does_not_lose_a_long_prompt(home: Home) -> None:
    text = "Killed at once. " + " ".join(f"Line {i} of the file." for i in range(240))
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 256, "temperature": 0, "enable_thinking": False}
    # No end token: the answer takes as long as a disk needs.
    durable_tokens = home.ask(**body | {"logit_bias": dict.fromkeys(map(str, tokenizer().stop_ids), -100)})["forerun"]["durable_tokens"]
    home.server.kill()
    home.start()
    report = home.ask(**body | {"max_tokens": 4})["forerun"]
    assert report["reused_tokens"] + report["computed_tokens"] > 1500
    assert report["reused_tokens"] >= durable_tokens
    assert report["source"] == "ssd"
    assert report["computed_tokens"] <= 1024 + SUFFIX, "more than the last unit was lost"

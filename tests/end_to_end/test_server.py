"""`forerun serve` as users run it: real processes on the bundled model, stopped and killed, used through the openai SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.cli.conftest import Ran, forerun
from tests.end_to_end.home import NUM, Home, home_at, num_cancelled, text
from tests.waiting import LIMIT_S

__all__ = ["forerun"]
SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 6}
QUESTIONS = ["Hello!", "Write a list of three colours.", "Count to five."]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home_at(tmp_path_factory.mktemp("home")) as home:
        yield home


@pytest.fixture
def client(home: Home) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{home.server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def next_turn(home: Home, messages: list[dict[str, Any]], question: str) -> dict[str, Any]:
    """Ask in this conversation; the answer must equal the one without stored state."""
    messages.append({"role": "user", "content": question})
    answer, plain = home.ask(messages), home.ask(messages, forerun={"bank": "bypass"})
    assert (text(answer), answer["usage"]["completion_tokens"]) == (text(plain), plain["usage"]["completion_tokens"])
    assert (plain["forerun"]["source"], plain["forerun"]["reason"]) == ("cold", "bypass")
    messages.append({"role": "assistant", "content": text(answer)})
    return answer


def test_tokens_of_a_damaged_record_are_computed_again(home: Home) -> None:
    messages = [{"role": "system", "content": "You will be damaged. " * 20}]
    next_turn(home, messages, QUESTIONS[0])
    home.server.stop()
    for record in (home.bank / "records").glob("*/*"):
        damaged = bytearray(record.read_bytes())
        damaged[-1] ^= 1
        record.write_bytes(damaged)
    home.start()
    report = next_turn(home, messages, QUESTIONS[1])["forerun"]
    assert (report["source"], report["reused_tokens"]) == ("cold", 0)
    assert report["reason"].startswith("set aside: ")
    assert httpx.get(f"{home.server.url}/health", timeout=LIMIT_S).json()["bank"]["quarantined"] > 0
    assert next_turn(home, messages, QUESTIONS[2])["forerun"]["source"] == "ram"


def test_bank_commands_work_with_and_without_a_running_server(home: Home, forerun: Callable[..., Ran]) -> None:
    messages = [{"role": "user", "content": "You will be managed. " * 20}]
    home.ask(messages, forerun={"session": "mine"})
    assert forerun("bank", "pin", "mine", "--bank-dir", home.bank).out == "mine is pinned\n"
    home.server.kill()
    shown = json.loads(forerun("bank", "show", "mine", "--bank-dir", home.bank, "--json").out)
    assert (shown["pinned"], shown["state"]) == (True, "ssd")
    home.start()
    assert home.ask(messages, forerun={"session": "mine"})["forerun"]["source"] == "ssd"
    assert forerun("bank", "rm", "mine", "--bank-dir", home.bank, "--yes").out == "mine is removed\n"
    assert home.ask(messages, forerun={"session": "mine"})["forerun"]["reused_tokens"] == 0


def test_the_openai_sdk(home: Home, client: openai.OpenAI) -> None:
    messages: Any = [SYSTEM, {"role": "user", "content": "Who are you?"}]
    assert [model.id for model in client.models.list()] == [home.server.line["model"]]
    answer = client.chat.completions.create(model="any", messages=messages, max_tokens=NUM, temperature=0)
    assert answer.choices[0].message.content == text(home.ask(messages, enable_thinking=None))
    assert answer.choices[0].finish_reason in ("stop", "length")
    again = client.chat.completions.create(model="any", messages=messages, max_tokens=NUM, temperature=0)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}], ids=["greedy", "seeded"])
def test_a_stream_equals_a_whole_answer(client: openai.OpenAI, sampling: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "model": "any",
        "messages": [SYSTEM, {"role": "user", "content": "Name a fruit."}],
        "max_tokens": NUM,
        **sampling,
    }
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].model_extra["forerun"]["reused_tokens"] == whole.usage.prompt_tokens


def test_a_conversation_continues_after_a_stop_string(home: Home) -> None:
    messages = [SYSTEM, {"role": "user", "content": "Tell me about rivers."}]
    whole = text(home.ask(messages))
    stop = whole[5:8]
    cut = home.ask(messages, stop=[stop])
    assert (text(cut), cut["choices"][0]["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    messages.append({"role": "assistant", "content": text(cut)})
    assert next_turn(home, messages, "Continue.")["forerun"]["source"] == "ram"


def test_a_client_that_disconnects_frees_the_engine(home: Home) -> None:
    body = {"messages": [{"role": "user", "content": "Write a long story. " * 40}], "stream": True, "max_tokens": 4000, "temperature": 0}
    before = num_cancelled(home.server.url)
    with httpx.stream("POST", f"{home.server.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as response:
        next(line for line in response.iter_lines() if line.startswith("data: "))
    home.ask([{"role": "user", "content": "Hello!"}])
    assert num_cancelled(home.server.url) == before + 1


def test_a_seed_gives_the_same_answer_whatever_is_stored(home: Home) -> None:
    messages = [SYSTEM, {"role": "user", "content": "Surprise me."}]
    sampling = {"temperature": 1.0, "seed": 11}
    answers = [home.ask(messages, **sampling, forerun={"bank": bank}) for bank in ("bypass", "use", "use")]
    assert len({text(answer) for answer in answers}) == 1
    assert answers[2]["forerun"]["computed_tokens"] == 0
    assert text(home.ask(messages, temperature=1.0, seed=12)) != text(answers[0])

"""Stored responses of a real server process, with OpenAI's own library: they outlive the process, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from tests.end_to_end.home import Home, home_at
from tests.talking import tokenizer
from tests.waiting import LIMIT_S, wait_for

KEYS = {"ann": "k-ann-000000000000000000000000", "bob": "k-bob-000000000000000000000000"}
# Thousands of tokens, since none that ends an answer is drawn: seconds.
ENDLESS: dict[str, Any] = {
    "background": True,
    "max_output_tokens": 6000,
    "extra_body": {"logit_bias": dict.fromkeys(tokenizer().stop_ids, -100)},
}
QUESTION = "Write a function that adds two numbers, and say in one line what it does."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("responses")
    keys = folder / "keys"
    keys.write_text("".join(f"{owner}:{key}\n" for owner, key in KEYS.items()))
    keys.chmod(0o600)
    with home_at(folder, "--eager", "--api-key-file", str(keys)) as home:
        yield home


@contextmanager
def gpt_of(home: Home, owner: str = "ann") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{home.server.url}/v1", api_key=KEYS[owner], max_retries=0, timeout=LIMIT_S) as client:
        yield client


def respond(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "input": text, "max_output_tokens": 12, "temperature": 0, **more}


def report(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.model_extra["forerun"]
    return found


def test_a_response_is_continued_after_kill_9(home: Home) -> None:
    """Killed as soon as the client has the last event."""
    with gpt_of(home) as gpt:
        stream = gpt.responses.create(**respond(QUESTION, instructions="Be brief."), stream=True)
        last = next(event for event in stream if event.type in ("response.completed", "response.incomplete"))
    home.server.kill()
    home.start()
    with gpt_of(home) as gpt:
        first = gpt.responses.retrieve(last.response.id)
        assert first.output == last.response.output
        second = gpt.responses.create(**respond("And one that multiplies them?", previous_response_id=first.id))
        assert second.usage
        assert first.usage
        assert second.usage.input_tokens > first.usage.input_tokens
        items = list(gpt.responses.input_items.list(second.id, order="asc"))
        assert [item.id for item in items[1:-1]] == [item.id for item in first.output]
    with gpt_of(home, "bob") as gpt:
        for call in (
            lambda: gpt.responses.retrieve(first.id),
            lambda: gpt.responses.delete(first.id),
            lambda: gpt.responses.create(**respond("And then?", previous_response_id=first.id)),
        ):
            with pytest.raises(openai.NotFoundError, match=first.id):
                call()


def test_what_is_continued_is_restored_from_disk(home: Home) -> None:
    with gpt_of(home) as gpt:
        first = gpt.responses.create(**respond(QUESTION))
    wait_until_written(home)
    home.server.kill()
    home.start()
    with gpt_of(home) as gpt:
        second = gpt.responses.create(**respond("Shorter.", previous_response_id=first.id))
        assert first.usage
        assert (report(second)["source"], report(second)["session"]) == ("ssd", report(first)["session"])
        assert report(second)["reused_tokens"] >= first.usage.input_tokens - 8


def wait_until_written(home: Home) -> None:
    with gpt_of(home) as gpt:
        wait_for(lambda: gpt.get("/../health", cast_to=dict[str, Any])["bank"]["pending_writes"] == 0)


def test_a_background_response_that_is_killed_has_failed(home: Home) -> None:
    with gpt_of(home) as gpt:
        made = gpt.responses.create(**respond(QUESTION, **ENDLESS))
        wait_for(lambda: gpt.responses.retrieve(made.id).status == "in_progress")
    home.server.kill()
    home.start()
    with gpt_of(home) as gpt:
        found = gpt.responses.retrieve(made.id)
        assert found.error
        assert (found.status, found.error.code) == ("failed", "server_error")
        assert "the server was stopped" in found.error.message
        assert gpt.responses.create(**respond("Try again.", previous_response_id=made.id)).status in ("completed", "incomplete")


def test_a_background_response_ends_without_its_client(home: Home) -> None:
    with gpt_of(home) as gpt:
        with gpt.responses.create(**respond(QUESTION, background=True), stream=True) as stream:
            first = next(iter(stream))
        assert first.type == "response.created"
        id = first.response.id
        wait_for(lambda: gpt.responses.retrieve(id).status in ("completed", "incomplete"))
        endless = gpt.responses.create(**respond(QUESTION, **ENDLESS))
        assert gpt.responses.cancel(endless.id).status == "cancelled"
        gpt.responses.delete(endless.id)
        with pytest.raises(openai.NotFoundError, match=endless.id):
            gpt.responses.retrieve(endless.id)

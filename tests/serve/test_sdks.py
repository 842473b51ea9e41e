"""The exceptions that the vendors' own libraries raise on errors, before an answer and in a stream, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from tests.serve.asking import serving
from tests.serve.engine_double import Engine

from forerun.errors import BadRequestError, BusyError, ContextLengthError, NumericsError
from forerun.values import Content, PrefillProgress

READ = PrefillProgress(4, 7, 3, None)
BODY: Any = {"model": "any", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def claude_of(engine: Engine) -> Iterator[anthropic.Anthropic]:
    with serving(engine) as port, anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def gpt_of(engine: Engine) -> Iterator[openai.OpenAI]:
    with serving(engine) as port, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BadRequestError("no"), anthropic.BadRequestError),
        (ContextLengthError("4000", 2048), anthropic.BadRequestError),
        (BusyError("16 wait", retry_after_s=3), anthropic.InternalServerError),
    ],
)
def test_anthropic_errors(error: Any, raised: type[anthropic.APIStatusError]) -> None:
    with claude_of(Engine(refusal=error)) as client, pytest.raises(raised, match=str(error)) as caught:
        client.messages.create(**BODY)
    assert caught.value.body["type"] == "error"


def test_anthropic_error_in_a_stream() -> None:
    with (
        claude_of(Engine(READ, Content("a"), NumericsError("not finite"))) as client,
        pytest.raises(anthropic.APIStatusError, match="finite"),
    ):
        list(client.messages.create(**BODY, stream=True))


def test_responses_errors() -> None:
    with (
        gpt_of(Engine(refusal=BusyError("16 wait", retry_after_s=3))) as client,
        pytest.raises(openai.InternalServerError, match="16 wait"),
    ):
        client.responses.create(model="any", input="hello")
    with gpt_of(Engine()) as client, pytest.raises(openai.NotFoundError, match="resp_0") as caught:
        client.responses.create(model="any", input="hello", previous_response_id="resp_0")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    with gpt_of(Engine(READ, NumericsError("not finite"))) as client:
        events = list(client.responses.create(model="any", input="hello", stream=True))
    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", "not finite")


def test_chat_errors() -> None:
    with (
        gpt_of(Engine(refusal=BusyError("16 wait", retry_after_s=3))) as client,
        pytest.raises(openai.InternalServerError, match="16 wait"),
    ):
        client.chat.completions.create(**BODY)
    with gpt_of(Engine()) as client, pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.chat.completions.create(**BODY, temperature=-1)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("choice", ["some", {"type": "function", "function": {"name": "write"}}])
def test_a_choice_of_no_tool_is_refused_with_a_message(choice: Any) -> None:
    tool: Any = {"type": "function", "function": {"name": "read"}}
    with gpt_of(Engine()) as client, pytest.raises(openai.BadRequestError, match="tool_choice") as caught:
        client.chat.completions.create(**BODY, tools=[tool], tool_choice=choice)
    assert caught.value.param == "tool_choice"

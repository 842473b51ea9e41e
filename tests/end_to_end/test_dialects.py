"""All dialects of a real `forerun serve` process on the bundled model, used through the vendors' own libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.end_to_end.home import home_at, num_cancelled
from tests.waiting import LIMIT_S

from forerun.demo.server import Server

SYSTEM = "You are a helpful assistant. " * 6
QUESTION = "Write a list of three colours."
TOOL: Any = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with home_at(tmp_path_factory.mktemp("dialects")) as home:
        yield home.server


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def body_with(**more: Any) -> dict[str, Any]:
    body = {"model": "any", "max_tokens": 24, "system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}]}
    return body | {"thinking": {"type": "disabled"}, "extra_body": {"temperature": 0}} | more


def test_messages(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**body_with(tools=[TOOL]))
    counted = claude.messages.count_tokens(
        model="any", system=SYSTEM, messages=body_with()["messages"], tools=[TOOL], thinking={"type": "disabled"}
    )
    usage = whole.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0) == counted.input_tokens
    with claude.messages.stream(**body_with(tools=[TOOL])) as stream:
        again = stream.get_final_message()
    assert [block.model_dump() for block in again.content] == [block.model_dump() for block in whole.content]
    assert again.stop_reason == whole.stop_reason
    assert again.usage.cache_read_input_tokens == counted.input_tokens


def test_a_conversation_is_reused_across_dialects(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Count to five."}]
    off = {"enable_thinking": False}
    first = gpt.chat.completions.create(model="any", messages=messages, max_tokens=24, temperature=0, extra_body=off)
    second = claude.messages.create(**body_with(messages=messages[1:]))
    assert first.usage is not None
    assert second.usage.cache_read_input_tokens == first.usage.prompt_tokens
    assert "".join(block.text for block in second.content if block.type == "text") == first.choices[0].message.content
    third = gpt.responses.create(model="any", instructions=SYSTEM, input="Count to five.", max_output_tokens=24, temperature=0)
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens >= third.usage.input_tokens - 8  # all but the generation prompt


def test_responses(gpt: openai.OpenAI) -> None:
    body: Any = {"model": "any", "input": QUESTION, "max_output_tokens": 24, "temperature": 0, "reasoning": {"summary": "auto"}}
    whole = gpt.responses.create(**body)
    events = list(gpt.responses.create(**body, stream=True))
    last = events[-1].response  # type: ignore[union-attr]
    assert [item.model_dump(exclude={"id"}) for item in last.output] == [item.model_dump(exclude={"id"}) for item in whole.output]
    assert (last.status, last.usage.output_tokens) == (whole.status, whole.usage.output_tokens)  # type: ignore[union-attr]


def test_completions(gpt: openai.OpenAI) -> None:
    body: Any = {"model": "any", "prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0}
    whole = gpt.completions.create(**body, echo=True)
    streamed = "".join(chunk.choices[0].text for chunk in gpt.completions.create(**body, stream=True))
    assert whole.choices[0].text == f"def add(a, b):{streamed}"
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 12


def test_an_answer_has_the_same_logprobs_in_prefill_as_when_it_was_decoded(gpt: openai.OpenAI) -> None:
    """Drafted, restored and seeded in decoding, against prefill of the whole text: the same bits."""
    body: Any = {"model": "any", "prompt": "import os\n\n\ndef size_of(path):\n", "logprobs": 5, "max_tokens": 40}
    decoded = gpt.completions.create(**body, temperature=0.8, seed=5).choices[0]
    prefilled = gpt.completions.create(**body | {"prompt": body["prompt"] + decoded.text, "max_tokens": 0}, echo=True).choices[0]
    assert decoded.logprobs
    assert decoded.logprobs.tokens
    assert prefilled.logprobs
    assert prefilled.logprobs.tokens
    start = len(prefilled.logprobs.tokens) - len(decoded.logprobs.tokens)
    logprobs = [
        each[start:] for each in (prefilled.logprobs.tokens, prefilled.logprobs.token_logprobs or [], prefilled.logprobs.top_logprobs or [])
    ]
    assert logprobs == [decoded.logprobs.tokens, decoded.logprobs.token_logprobs, decoded.logprobs.top_logprobs]
    assert (prefilled.text, prefilled.finish_reason) == (body["prompt"] + decoded.text, "length")


LONG = "Write a long story. " * 40


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4000}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 4000}),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 4000}),
    ],
)
def test_a_client_that_disconnects_frees_the_engine(server: Server, path: str, fields: dict[str, Any]) -> None:
    before, body = num_cancelled(server.url), {"temperature": 0, "stream": True, **fields}
    with httpx.stream("POST", f"{server.url}{path}", json=body, timeout=LIMIT_S) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    short = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=short, timeout=LIMIT_S).status_code == 200
    assert num_cancelled(server.url) == before + 1

"""The bundled model with tools, through OpenAI's library and a real server process: its own calls are never computed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.end_to_end.home import Home, home_at

FILES = {"utils.py": "def add(a, b):\n    return a + b\n", "main.py": "from utils import add\n\nprint(add(1, 2))\n"}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
GREP: Any = {
    "type": "function",
    "function": {
        "name": "grep",
        "description": "Search for a pattern.",
        "parameters": {"type": "object", "properties": {"pattern": {"type": "string"}, "path": {"type": "string"}}},
    },
}
BODY: Any = {"model": "any", "tools": [TOOL], "temperature": 0, "max_tokens": 100}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home_at(tmp_path_factory.mktemp("tools")) as home:
        yield home


@pytest.fixture
def client(home: Home) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{home.server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(home: Home, messages: list[Any], **body: Any) -> Any:
    """The completion of the present server."""
    with openai.OpenAI(base_url=f"{home.server.url}/v1", api_key="none", max_retries=0) as client:
        return client.chat.completions.create(**BODY | body, messages=messages)


def rewritten(message: dict[str, Any]) -> dict[str, Any]:
    """The answer as a client sends it back: arguments serialised again, without empty fields."""
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    return {name: value for name, value in message.items() if value}


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = ((call["id"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"])
    return [{"role": "tool", "tool_call_id": id, "content": FILES.get(arguments["path"], "no such file")} for id, arguments in calls]


def test_a_loop_of_calls_computes_only_new_tokens(client: openai.OpenAI) -> None:
    messages: list[Any] = []
    cached_tokens, num_calls = 0, 0
    for question in ("Read the file utils.py.", "Read the file main.py."):
        messages.append({"role": "user", "content": question})
        for _ in range(3):
            completion = client.chat.completions.create(**BODY, messages=messages)
            choice, usage = completion.choices[0], completion.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == cached_tokens, completion.model_extra
            message = rewritten(choice.message.model_dump())
            cached_tokens = usage.prompt_tokens + usage.completion_tokens - 1  # the stop token is not in the cache
            messages.append(message)
            if choice.finish_reason != "tool_calls":
                break
            num_calls += 1
            messages += results(message)
    assert num_calls >= 2


def test_streamed_calls_are_those_of_a_whole_answer(client: openai.OpenAI) -> None:
    body: Any = {**BODY, "messages": [{"role": "user", "content": "Read the file utils.py."}]}
    whole = client.chat.completions.create(**body).choices[0]
    with client.chat.completions.stream(**body) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert (whole.finish_reason, streamed.finish_reason) == ("tool_calls", "tool_calls")
    assert whole.message.tool_calls is not None
    assert streamed.message.tool_calls is not None
    functions = [
        [call.function.model_dump(include={"name", "arguments"}) for call in c.message.tool_calls or []] for c in (whole, streamed)
    ]
    assert functions[0] == functions[1] == [{"name": "read_file", "arguments": '{"path": "utils.py"}'}]


def test_a_call_cut_off_ends_as_length(client: openai.OpenAI) -> None:
    body: Any = {**BODY, "messages": [{"role": "user", "content": "Read the file utils.py."}]}
    usage = client.chat.completions.create(**body).usage
    assert usage is not None
    choice = client.chat.completions.create(**body | {"max_tokens": usage.completion_tokens - 8}).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice.message.tool_calls[0].function.arguments)


def test_a_rewritten_call_is_reused_after_a_kill(home: Home) -> None:
    messages: list[Any] = [{"role": "user", "content": "Where is `add` defined?"}]
    before = complete(home, messages, tools=[GREP])
    message = before.choices[0].message.model_dump(exclude_none=True)
    (call,) = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == ["pattern", "path"]
    call["function"]["arguments"] = json.dumps({"path": arguments["path"], "pattern": arguments["pattern"]}, indent=2)
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "utils.py:1:def add(a, b):"}]
    home.server.wait_until_written()
    home.server.kill()
    home.start()
    after = complete(home, messages, tools=[GREP])
    assert after.forerun["source"] == "ssd"
    assert after.forerun["reused_tokens"] == before.usage.total_tokens - 1
    plain = complete(home, messages, tools=[GREP], extra_body={"forerun": {"bank": "bypass"}})
    assert (plain.choices[0].message.content, plain.forerun["source"]) == (after.choices[0].message.content, "cold")

"""Case 05: hosted tools and the items of their calls are left out and named; what only the provider can read is refused with a hint."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.rendered import CHAT, COUNT, MESSAGES, RESPONSES, Answers, case

CASE = case("05-hosted-tools-and-items")
UNREADABLE = ("compaction", "item_reference")
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("sent", CASE["tools"], ids=[each["body"]["tools"][1]["type"] for each in CASE["tools"]])
def test_tools_of_responses(server: Answers, sent: dict[str, Any]) -> None:
    assert server.report(RESPONSES, sent["body"])["ignored_fields"] == [f"tools.{sent['body']['tools'][1]['type']}"]
    text = server.text(RESPONSES, sent["body"])
    assert '"name": "f"' in text
    assert sent["body"]["tools"][1]["type"] not in text


@pytest.mark.parametrize("sent", CASE["items"], ids=[each["body"]["input"][1]["type"] for each in CASE["items"]])
def test_items_of_responses(server: Answers, sent: dict[str, Any]) -> None:
    item = sent["body"]["input"][1]
    if item["type"] in UNREADABLE:
        response = server.post(RESPONSES, sent["body"])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input[1]")
        assert "send the item" in response.text
        return
    report, text = server.report(RESPONSES, sent["body"]), server.text(RESPONSES, sent["body"])
    expected = {
        "message": ([], [], "no<|im_end|>"),
        "local_shell_call": ([], ["local_shell_call: rendered as a function's"], '"name": "local_shell", "arguments": {"action"'),
    }
    left_out = ([f"input.{item['type']}"], [f"{item['type']}: left out"], "hi<|im_end|>\n<|im_start|>user\ngo on")
    ignored, rendering, words = expected.get(item["type"], left_out)
    assert (report["ignored_fields"], report["rendering"]) == (ignored, rendering)
    assert words in text


@pytest.mark.parametrize("sent", CASE["messages"])
def test_messages(server: Answers, sent: dict[str, Any]) -> None:
    report, text = server.report(MESSAGES, sent["body"]), server.text(MESSAGES, sent["body"])
    if "tools" in sent["body"]:
        assert (report["ignored_fields"], '"name": "Read"' in text) == (["tools.tool_search_tool_regex_20251119"], True)
    else:
        kinds = ["server_tool_use", "web_search_tool_result"]
        assert report["ignored_fields"] == [f"messages.content.{kind}" for kind in kinds]
        assert report["rendering"] == [f"{kind}: left out" for kind in kinds]
        assert "done<|im_end|>" in text
    count = server.post(COUNT, {name: value for name, value in sent["body"].items() if name != "max_tokens"})
    assert count.json() == {"input_tokens": len(server.prompt.tokens)}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5, "user_location": {"type": "approximate"}},
    ],
)
def test_other_tools_of_messages(server: Answers, tool: dict[str, Any]) -> None:
    body = {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    assert server.report(MESSAGES, body)["ignored_fields"] == [f"tools.{tool['type']}"]
    assert "# Tools" not in server.text(MESSAGES, body)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": [{"type": "text", "text": "x"}]},
        {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"type": "code_execution_result", "stdout": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "web_search_tool_result_error", "error_code": "x"}},
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_other_blocks_of_messages(server: Answers, block: dict[str, Any], role: str) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": role, "content": [block]}, {"role": "user", "content": "b"}]
    body = {"max_tokens": 4, "messages": turns}
    assert server.report(MESSAGES, body)["ignored_fields"] == [f"messages.content.{block['type']}"]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (
            [
                {"type": "local_shell_call", "call_id": "l", "action": {"command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "l", "output": "a.py"},
            ],
            ('{"name": "local_shell", "arguments": {"action": {"command": ["ls"]}}}', "<tool_response>\na.py\n</tool_response>"),
        ),
        (
            [
                {"type": "shell_call", "call_id": "l", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "l", "output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit"}}]},
            ],
            ('"name": "shell"', '{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit"}}'),
        ),
        (
            [
                {"type": "computer_call", "call_id": "l", "action": {"type": "screenshot"}, "pending_safety_checks": []},
                {"type": "computer_call_output", "call_id": "l", "output": {"type": "computer_screenshot", "image_url": "https://x"}},
            ],
            ('"name": "computer"', "[image omitted]"),
        ),
    ],
)
def test_calls_that_the_client_ran_are_rendered(server: Answers, items: list[dict[str, Any]], words: tuple[str, ...]) -> None:
    text = server.text(RESPONSES, {"max_output_tokens": 4, "input": [{"role": "user", "content": "hi"}, *items]})
    assert [each for each in words if each not in text] == []


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "x"},
        {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
        {"type": "code_interpreter_call", "id": "c", "code": "1", "outputs": None, "container_id": "x"},
        {"type": "file_search_call", "id": "f", "queries": ["x"], "results": None},
        {"type": "invented_item", "name": 5, "output": {"x": 1}, "content": 7},
    ],
)
def test_other_items_are_left_out(server: Answers, item: dict[str, Any]) -> None:
    report = server.report(RESPONSES, {"max_output_tokens": 4, "input": [{"role": "user", "content": "hi"}, item]})
    assert report["ignored_fields"] == [f"input.{item['type']}"]


def test_a_search_for_tools_that_the_provider_ran_is_left_out(server: Answers) -> None:
    call = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {"query": "x"}}
    found = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}
    body = {"max_output_tokens": 4, "input": [{"role": "user", "content": "hi"}, call, found]}
    assert server.report(RESPONSES, body)["rendering"] == ["tool_search_call: left out", "tool_search_output: left out"]


def test_hosted_tools_inside_a_namespace(server: Answers) -> None:
    function = {"type": "function", "name": "g", "parameters": {}}
    body = {"max_output_tokens": 4, "input": "hi", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "shell"}, function]}]}
    assert server.report(RESPONSES, body)["ignored_fields"] == ["tools.shell"]


def test_tools_of_chat(server: Answers) -> None:
    tools = [{"type": "web_search"}, READ, {"type": "custom", "custom": {"name": "x"}}]
    body = {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    assert server.report(CHAT, body)["ignored_fields"] == ["tools.web_search"]
    assert '"name": "read"' in server.text(CHAT, body)


def test_servers_of_tools_that_the_provider_would_connect_to_are_left_out(server: Answers) -> None:
    body = {
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hi"}],
        "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}],
    }
    report = server.report(MESSAGES, body)
    assert (report["ignored_fields"], report["rendering"]) == (["mcp_servers"], ["mcp_servers: left out"])
    assert server.post(COUNT, {name: value for name, value in body.items() if name != "max_tokens"}).status_code == 200

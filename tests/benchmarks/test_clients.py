"""What decides in the clients' benchmark: the scripted answers, whether the task is done, what could have been reused; and its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forerun.values import Chat

ROOT = Path(__file__).parents[2]
CLIENTS = ("opencode", "codex", "claude-code", "pi", "aider", "openai-chat", "openai-responses", "anthropic")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package as the script imports it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import client_task.reuse
    import client_task.script
    import client_task.server
    import client_task.task

    yield client_task
    for name in [name for name in sys.modules if name.partition(".")[0] == "client_task"]:
        del sys.modules[name]


def tool(name: str, *parameters: str, **more: Any) -> dict[str, Any]:
    properties = {each: {"type": "string"} for each in parameters} | more
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def chat(parts: ModuleType, turn: int, num_answers: int, *tools: dict[str, Any], system: str = "") -> Chat:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"<now>\n{parts.task.PROMPTS[turn]}"}]
    return Chat((*messages, *[{"role": "assistant", "content": "..."}] * num_answers), tools, {})


EDITS = {"type": "array", "items": {"type": "object", "properties": {"oldText": {"type": "string"}, "newText": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("edit", "given"),
    [
        (tool("edit", "filePath", "oldString", "newString"), {"filePath": "x/calc.py", "oldString": "OLD", "newString": "NEW"}),
        (tool("Edit", "file_path", "old_string", "new_string"), {"file_path": "x/calc.py", "old_string": "OLD", "new_string": "NEW"}),
        (tool("edit", "path", edits=EDITS), {"path": "x/calc.py", "edits": [{"oldText": "OLD", "newText": "NEW"}]}),
    ],
)
def test_an_edit_is_called_as_the_client_declares_it(parts: ModuleType, edit: dict[str, Any], given: dict[str, Any]) -> None:
    ((name, arguments),) = parts.script.answer_to(chat(parts, 0, 2, edit, tool("bash", "command")), "x").calls
    change = parts.task.EDITS[0]
    assert name == edit["function"]["name"]
    assert json.dumps(arguments) == json.dumps(given).replace("OLD", change.old).replace("NEW", change.new)


def test_a_client_that_has_a_shell_alone_patches_with_it(parts: ModuleType) -> None:
    ((name, arguments),) = parts.script.answer_to(chat(parts, 1, 0, tool("exec_command", "cmd")), "x").calls
    assert name == "exec_command"
    assert arguments["cmd"].startswith(
        "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: calc.py\n@@\n-    return a / b\n+    return a / b\n+\n"
    )


def test_a_turn_ends_with_text(parts: ModuleType) -> None:
    answer = parts.script.answer_to(chat(parts, 0, 9, tool("bash", "command")), "x")
    assert answer.text
    assert answer.calls == ()


@pytest.mark.parametrize("system", ["Write a *SEARCH/REPLACE block*.", "Return a *file listing*."])
def test_a_client_without_tools_gets_its_edit_format(parts: ModuleType, system: str) -> None:
    assert "    return a**b" in parts.script.answer_to(chat(parts, 1, 0, system=system), "x").text


def test_other_requests_get_a_short_answer(parts: ModuleType) -> None:
    assert parts.script.answer_to(chat(parts, 0, 0, system="Write a title."), "x").text == parts.script.SIDE_ANSWER
    assert (
        parts.script.answer_to(Chat(({"role": "user", "content": "Write a commit message."},), (), {}), "x").text
        == parts.script.SIDE_ANSWER
    )


def test_the_task_is_done_by_its_edits_alone(parts: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "calc"
    parts.task.create(folder)
    done = []
    for num in range(3):
        (folder / parts.task.FILE).write_text(parts.task.edited(num))
        done.append([parts.task.is_done(turn, folder, f"> {parts.task.SENTENCE}\n") for turn in range(3)])
    assert done == [[False, False, False], [True, False, False], [True, True, True]]
    assert not parts.task.is_done(2, folder, "Something else.")


def test_answers_of_concurrent_prompts_do_not_mix(parts: ModuleType) -> None:
    script = parts.server.Script([each % 7 for each in range(100)], 99)
    answers = {(1, 2, 3): [4, 5], (1, 2, 10): [6], (1, 3, 3): [4, 4, 4]}
    for prompt, answer in answers.items():
        script.add(prompt, answer)
    for prompt, answer in answers.items():
        tokens = list(prompt)
        for _ in range(len(answer) + 1):
            tokens.append(script(len(tokens), tokens[-1], sum(each % 7 for each in tokens)))
        assert tokens[len(prompt) :] == [*answer, 99]


def entry(id: str, reused: int, computed: int) -> dict[str, Any]:
    report = {"reused_tokens": reused, "computed_tokens": computed, "source": "ram", "miss": None}
    return {"id": id, "outcome": "stop", "error": None, "prompt_tokens": reused + computed, "usage": None, "report": report}


def prompt(id: str, tokens: list[int], *messages: str, tools: tuple[str, ...] = ("t",)) -> dict[str, Any]:
    return {"id": id, "prompt": tokens, "answer": [7], "messages": list(messages), "tools": list(tools)}


def test_only_what_grew_is_held_to_be_reused(parts: ModuleType) -> None:
    prompts = [
        prompt("a", [1] * 100, "system", "one"),
        prompt("b", [1] * 120, "system", "one", "answer", "two"),
        prompt("c", [1] * 50 + [2] * 90, "system", "changed", "answer", "two"),
        prompt("lost", [1] * 5, "system"),
        prompt("d", [1] * 130, "system", "one", "answer", "two", "answer", "three"),
    ]
    entries = [entry("a", 0, 100), entry("b", 99, 21), entry("c", 40, 100), entry("d", 110, 20)]
    rows = parts.reuse.requests(entries, prompts)
    assert [row and (row["append_only_tokens"], row["stored_tokens"]) for row in rows] == [
        (None, 0),
        (100, 100),
        (None, 50),
        None,
        (120, 120),
    ]
    assert parts.reuse.is_enough(row for row in rows[:4] if row)
    assert not parts.reuse.is_enough(row for row in rows if row)


def test_the_result_is_of_every_client() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "clients.json").read_text())
    assert result["holds"]
    assert tuple(result["clients"]) == CLIENTS
    for name, row in result["clients"].items():
        assert row["is_done"], name
        assert row["reuses_enough"], name

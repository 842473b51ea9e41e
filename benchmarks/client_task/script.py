"""What the scripted model answers to a conversation about the task: reasoning, text and calls of the tools that the request offers.

A pure function of the conversation, as a model is: it finds the last prompt of the task in it, counts the answers since, and takes the next
step with the tools that are there. A client without tools is answered in the edit format that its system prompt asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_task.task import EDITS, FILE, PROMPTS, SENTENCE, TEST_COMMAND, TEST_FILE, Edit, edited
from forerun.values import Chat

# Names of tools, without case and underscores, and of their parameters.
READ, EDIT, SHELL = ("read", "readfile"), ("edit", "editfile"), ("bash", "execcommand", "runcommand", "shell")
MEANINGS = {
    **dict.fromkeys(("path", "filepath"), "path"),
    **dict.fromkeys(("old", "oldstring", "oldtext"), "old"),
    **dict.fromkeys(("new", "newstring", "newtext"), "new"),
    **dict.fromkeys(("command", "cmd"), "command"),
}
SIDE_ANSWER = "Fix the division in calc.py"  # to what is asked beside the conversation: a title, a commit message


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """calls: names and arguments."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    def written(self, *, opens_reasoning: bool) -> str:
        """As the bundled model's template has its model write it."""
        blocks = (f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in self.calls)
        text = "\n".join(filter(None, [self.text, *blocks]))
        return f"{self.reasoning}\n</think>\n\n{text}" if opens_reasoning else text


def answer_to(chat: Chat, folder: str) -> ScriptedAnswer:
    """The answer to a conversation about the task in `folder`."""
    at, turn = _last_prompt(chat.messages)
    if turn is None:
        return ScriptedAnswer("Not about the task.", SIDE_ANSWER)
    tools = _Tools(chat, folder)
    if tools.can_work:
        num_answers: int = sum(message["role"] == "assistant" for message in chat.messages[at:])
        steps = _steps(tools, turn)
        return steps[min(num_answers, len(steps) - 1)]
    system = " ".join(text_of(message) for message in chat.messages if message["role"] == "system")
    if "SEARCH/REPLACE" in system:
        return _by_blocks(turn)
    return _by_file(turn) if "file listing" in system else ScriptedAnswer("A title will do.", SIDE_ANSWER)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _last_prompt(messages: Sequence[Mapping[str, Any]]) -> tuple[int, int | None]:
    """The number of the message with the last prompt of the task, and which prompt it is; None if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user":
            text = text_of(messages[at])
            for turn, prompt in enumerate(PROMPTS):
                if prompt in text:
                    return at, turn
    return 0, None


def _steps(tools: _Tools, turn: int) -> list[ScriptedAnswer]:
    """The answers to a prompt in order; the last one ends the turn."""
    test = tools.shell(TEST_COMMAND)
    if turn == 0:
        look = (tools.read(FILE), tools.read(TEST_FILE))
        return [
            ScriptedAnswer("A bug is to be fixed. First the file and its test, together.", "I look at the file and its test.", look),
            ScriptedAnswer("The test shows what fails.", "", (test,)),
            ScriptedAnswer("`divide` uses floor division. One line is to be changed.", "", (tools.edit(EDITS[0]),)),
            ScriptedAnswer("", "Now the test again.", (test,)),
            ScriptedAnswer("All pass.", "Fixed: `divide` used floor division (`//`); it now uses true division (`/`). Both tests pass."),
        ]
    if turn == 1:
        return [
            ScriptedAnswer("At the end of the file.", "I add `power`.", (tools.edit(EDITS[1]),)),
            ScriptedAnswer("Nothing else may break.", "", (test,)),
            ScriptedAnswer("All pass.", "Added `power(a, b)` to calc.py; the tests pass."),
        ]
    return [ScriptedAnswer("One sentence.", SENTENCE)]


def _by_blocks(turn: int) -> ScriptedAnswer:
    if turn == len(EDITS):
        return ScriptedAnswer("One sentence.", SENTENCE)
    edit = EDITS[turn]
    block = f"{FILE}\n```python\n<<<<<<< SEARCH\n{edit.old}\n=======\n{edit.new}\n>>>>>>> REPLACE\n```\n"
    return ScriptedAnswer("One block.", f"Here is the change:\n\n{block}")


def _by_file(turn: int) -> ScriptedAnswer:
    if turn == len(EDITS):
        return ScriptedAnswer("One sentence.", SENTENCE)
    return ScriptedAnswer("The whole file.", f"Here is the file:\n\n{FILE}\n```\n{edited(turn + 1)}```\n")


class _Tools:
    """Calls of the tools that a request offers; what none of them does, its shell does."""

    def __init__(self, chat: Chat, folder: str) -> None:
        self._folder = folder
        self._schemas = {each["function"]["name"]: each["function"].get("parameters") or {} for each in (*chat.tools, *chat.held_back)}

    @property
    def can_work(self) -> bool:
        return self._name(SHELL) is not None

    def read(self, file: str) -> tuple[str, dict[str, Any]]:
        return self._call(READ, {"path": f"{self._folder}/{file}"}) or self.shell(f"cat {file}")

    def edit(self, edit: Edit) -> tuple[str, dict[str, Any]]:
        values = {"path": f"{self._folder}/{FILE}", "old": edit.old, "new": edit.new}
        return self._call(EDIT, values) or self.shell(_patch(edit))

    def shell(self, command: str) -> tuple[str, dict[str, Any]]:
        return self._call(SHELL, {"command": command}) or ("none", {})

    def _name(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in self._schemas if _plain(name) in names), None)

    def _call(self, names: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
        name = self._name(names)
        return (name, _filled(self._schemas[name], values)) if name else None


def _filled(schema: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a schema: each parameter whose meaning is among `values`, those of objects in a list too."""
    given: dict[str, Any] = {}
    for name, each in schema.get("properties", {}).items():
        if each.get("type") == "array" and "properties" in each.get("items", {}):
            if items := _filled(each["items"], values):
                given[name] = [items]
        elif (value := values.get(MEANINGS.get(_plain(name), ""))) is not None:
            given[name] = value
    return given


def _plain(name: str) -> str:
    return name.replace("_", "").casefold()


def _patch(edit: Edit) -> str:
    """The edit as a command of a shell that has `apply_patch`."""
    lines = [*(f"-{line}" for line in edit.old.split("\n")), *(f"+{line}" for line in edit.new.split("\n"))]
    patch = ["*** Begin Patch", f"*** Update File: {FILE}", "@@", *lines, "*** End Patch"]
    return "\n".join(["apply_patch <<'EOF'", *patch, "EOF"])

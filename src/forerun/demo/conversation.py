"""A recorded conversation of an agent that works on forerun, made from the package's own files: questions, tool calls and results.

Pure: takes files as texts and a function that counts tokens. Knows no server and no model.

Every request ends at a user message. `opening` is the first request; each later one appends the server's answer and the next of
`continuations`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

Message = dict[str, Any]
Count = Callable[[str], int]

SYSTEM = "You are a coding agent. You work on forerun, a local LLM server."


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths in tokens: of the files in the first prompt, of a tool result in each later exchange, of an answer (maximum)."""

    name: str
    first_prompt_tokens: int
    result_tokens: int
    answer_tokens: int


SMALL = Scale("small", first_prompt_tokens=48, result_tokens=40, answer_tokens=64)
FULL = Scale("full", first_prompt_tokens=14000, result_tokens=1700, answer_tokens=256)
SCALES = {scale.name: scale for scale in (SMALL, FULL)}


@dataclass(frozen=True, slots=True)
class Conversation:
    """tools: OpenAI declarations. opening: messages of the first request. continuations: messages that each later request appends."""

    tools: tuple[dict[str, Any], ...]
    opening: tuple[Message, ...]
    continuations: tuple[tuple[Message, ...], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call and its result."""

    tool: str
    arguments: dict[str, str]
    result: str


def record(sources: Mapping[str, str], scale: Scale, count: Count) -> Conversation:
    """The conversation over `sources` (path -> text). Tool results are cut to the scale's tokens, as `count` counts them."""
    queue = deque(sources.items())
    later = scale.result_tokens
    system = {"role": "system", "content": SYSTEM}
    checks = exchange("Read the first files.", list(read(queue, scale.first_prompt_tokens, count)), "Done.", "c1")
    searched = exchange("Where are errors raised?", [search(sources, "raise ", later, count)], "See above.", "c2")
    return Conversation(
        tools=TOOLS,
        opening=(system, *checks, *searched, user("Explain these errors.")),
        continuations=(
            (*exchange("Read on.", list(read(queue, later, count)), "Done.", "c3"), user("What is this for?")),
            (*exchange("Where is the bank used?", [search(sources, "bank", later, count)], "Here.", "c4"), user("Explain the bank.")),
            (*exchange("Read more.", list(read(queue, later, count)), "Done.", "c5"), user("Sum up this file.")),
            (
                *exchange("Now the next file.", list(read(queue, later, count)), "Done.", "c6"),
                user("Edit it: add one line on what it does."),
            ),
        ),
    )


def package_sources() -> dict[str, str]:
    """The package's own Python files of more than 20 lines (path -> text), outermost folder first."""
    sources = sorted(_walk(files("forerun"), ""), key=lambda item: (item[0].count("/"), item[0]))
    return {path: text for path, text in sources if text.count("\n") > 20}


def exchange(ask: str, calls: list[Call], answer: str, key: str) -> list[Message]:
    """The messages of a recorded exchange: question, tool calls, their results, answer."""
    numbered = [(f"{key}_{number}", call) for number, call in enumerate(calls)]
    tool_calls = [
        {"id": name, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.arguments)}}
        for name, call in numbered
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": call.result} for name, call in numbered]
    return [user(ask), {"role": "assistant", "content": "", "tool_calls": tool_calls}, *results, {"role": "assistant", "content": answer}]


def user(content: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": content}


def read(queue: deque[tuple[str, str]], budget_tokens: int, count: Count) -> Iterator[Call]:
    """Calls that read the next files of the queue, up to `budget_tokens` of results; the last one is cut."""
    while budget_tokens > 0 and queue:
        path, text = queue.popleft()
        shown, used_tokens = cut(text, budget_tokens, count)
        budget_tokens -= used_tokens
        if shown != text:
            budget_tokens = 0
        yield Call("read_file", {"path": path}, shown)


def search(sources: Mapping[str, str], words: str, budget_tokens: int, count: Count) -> Call:
    """A call that finds the lines with `words` in all files, cut to `budget_tokens`."""
    lines = (
        f"{path}:{number}: {line.strip()}"
        for path, text in sources.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if words in line
    )
    return Call("search", {"words": words.strip()}, cut("\n".join(lines), budget_tokens, count)[0])


def cut(text: str, limit_tokens: int, count: Count) -> tuple[str, int]:
    """The first words of `text` that fit into `limit_tokens`, counted word by word, and their number of tokens."""
    used_tokens, stop = 0, 0
    for word in re.finditer(r"\s*\S+\s*\Z|\s*\S+", text):
        num_tokens = count(word[0])
        if used_tokens + num_tokens > limit_tokens:
            break
        used_tokens, stop = used_tokens + num_tokens, word.end()
    return text[:stop], used_tokens


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = (
    _tool("read_file", "Read a file.", "path"),
    _tool("search", "Find words.", "words"),
    _tool("edit_file", "Edit a file.", "path", "text"),
    _tool("list_files", "List all files."),
    _tool("run_tests", "Run all tests."),
)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")

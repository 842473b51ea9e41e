"""The messages of the training conversations: roles, tool calls and tool declarations in the form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Message = dict[str, Any]


class Exchange(NamedTuple):
    """One question, what the assistant may think about it first, and its answer."""

    question: str
    thought: str | None
    answer: str


class Tool(NamedTuple):
    """A tool of the agent; each parameter is (type, description)."""

    description: str
    parameters: Mapping[str, tuple[str, str]]
    required: tuple[str, ...]


TOOLS = {
    "read_file": Tool("Read a text file and return its content.", {"path": ("string", "Path of the file.")}, ("path",)),
    "list_dir": Tool("List the entries of a directory.", {"path": ("string", "Path of the directory.")}, ("path",)),
    "grep": Tool(
        "Search files for a pattern and return the matching lines.",
        {"pattern": ("string", "Text to look for."), "path": ("string", "File or directory to search.")},
        ("pattern",),
    ),
    "edit_file": Tool(
        "Replace one piece of text in a file by another.",
        {
            "path": ("string", "Path of the file."),
            "old_text": ("string", "Text to replace."),
            "new_text": ("string", "Text to put in its place."),
        },
        ("path", "old_text", "new_text"),
    ),
    "write_file": Tool(
        "Write a file, replacing what it held.",
        {"path": ("string", "Path of the file."), "content": ("string", "The whole new content.")},
        ("path", "content"),
    ),
    "run_command": Tool("Run a shell command and return its output.", {"command": ("string", "The command line.")}, ("command",)),
}

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful coding assistant. Answer briefly.",
    "You are a Python assistant. Read the code before you answer.",
    "You are an assistant for programmers.",
    "You are a concise assistant.",
)
AGENT_SYSTEMS = (
    "You are an agent that works in a code repository. Use the tools to look before you answer.",
    "You are a coding agent. Read files with the tools, make small edits and report what you did.",
    "You work on the {package} repository. Use the tools, and keep the answers short.",
    "You are a careful software engineer with access to the {package} repository through tools.",
    "You are a coding agent in the repository {package}. Call tools when you need a file.",
)


def message(role: str, content: str, thought: str | None = None) -> Message:
    """A message without tool calls."""
    plain: Message = {"role": role, "content": content}
    return {**plain, "reasoning_content": thought} if thought else plain


def call(content: str, thought: str | None, tool: str, arguments: Mapping[str, str]) -> Message:
    """An assistant's message that calls one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {**message("assistant", content, thought), "tool_calls": [{"type": "function", "function": function}]}


def tool_specs(names: Iterable[str]) -> list[dict[str, Any]]:
    """JSON declarations of the named tools."""
    return [{"type": "function", "function": _spec(name, TOOLS[name])} for name in names]


def _spec(name: str, tool: Tool) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in tool.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": list(tool.required)}
    return {"name": name, "description": tool.description, "parameters": parameters}

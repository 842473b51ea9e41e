"""The tools of the recorded clients, as the chat dialect declares them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


@cache
def tool_lists() -> tuple[tuple[dict[str, Any], ...], ...]:
    """The different lists of tools that clients sent."""
    lists = {json.dumps(tools): tuple(map(declared, tools)) for tools in _sent()}
    return tuple(lists.values())


@cache
def tools() -> dict[str, dict[str, Any]]:
    """The different tools in them."""
    return {json.dumps(each): each for tools in tool_lists() for each in tools}


def declared(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    schema = function.get("parameters", function.get("input_schema")) or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": function.get("name", function.get("type", "")), "parameters": schema},
    }


def _sent() -> Iterator[list[dict[str, Any]]]:
    for path in sorted(RECORDINGS.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            body = json.loads(line)["body"]
            yield from [body["tools"]] if isinstance(body, dict) and body.get("tools") else []

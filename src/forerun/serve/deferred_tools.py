"""Tools that a client declares but holds back until the model asks for them.

They are not in the list of tools: it is at the head of the prompt, where a change would invalidate the whole cached prefix. They are
declared where they are introduced, in the result of the call that found them. Knows chat templates' form of a tool, and no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


class DeferredTools:
    """The held-back tools, by name."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._tools = {tool["function"]["name"]: tool for tool in tools}

    def declaration(self, name: str) -> str:
        """A line that declares the tool to the model; just its name if it is in the list of tools already, or unknown."""
        tool = self._tools.get(name)
        return (name if tool is None else json.dumps(tool, ensure_ascii=False)) + "\n"

"""Tools that a client declares but holds back until the model asks for them.

They are no part of the list of tools: it stands at the head of the prompt, where each change would make the whole conversation new. They
are declared where they are introduced, in the result of the call that found them. Knows chat templates' form of a tool, and no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


class Deferred:
    """The tools that are held back, by name."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._tools = {tool["function"]["name"]: tool for tool in tools}

    def declaration(self, name: str) -> str:
        """A line that tells the model of the tool; of one that is already in the list of tools, or unknown, its name alone."""
        tool = self._tools.get(name)
        return (name if tool is None else json.dumps(tool, ensure_ascii=False)) + "\n"

"""Tools that a client declares but holds back until the model asks for them.

They are not in the list of tools: it is at the head of the prompt, where a change would invalidate the whole cached prefix. They are
declared where they are introduced, in the result of the call that found them. Knows chat templates' form of a tool, and no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def declaration(name: str, deferred: Mapping[str, Mapping[str, Any]]) -> str:
    """A line that declares the tool to the model; just its name if it is not deferred: in the list of tools already, or unknown."""
    return (json.dumps(deferred[name], ensure_ascii=False) if name in deferred else name) + "\n"

"""Removes the texts of deleted conversations from the request log. Knows lines; no files and no bank."""

from __future__ import annotations

import json
from collections.abc import Callable


def without_texts(line: str, is_owner: Callable[[str], bool], is_gone: Callable[[str], bool]) -> str:
    """The line, without prompt and answer if its tenant satisfies is_owner and its session is_gone, or is unknown (no report). The texts
    that a miss quotes, maybe of another conversation, are removed from all of the owner's lines. "" for a line that cannot be parsed,
    since it may hold such texts.
    """
    try:
        entry = json.loads(line)
        report, is_theirs = entry["report"] or {}, is_owner(entry["tenant"])
    except (ValueError, TypeError, LookupError):
        return ""
    if not is_theirs:
        return line
    if report.get("session") is None or is_gone(report["session"]):
        entry["content"] = None
    if report.get("miss"):
        report["miss"] |= {"prompt_text": "", "stored_text": ""}
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))

"""Takes the texts of conversations that were removed out of the request log. Knows lines; no files and no bank."""

from __future__ import annotations

import json
from collections.abc import Callable


def without_texts(line: str, is_owner: Callable[[str], bool], is_gone: Callable[[str], bool]) -> str:
    """The line, without what was asked and answered if it is of such an owner and of a conversation that is gone. Where it is not known
    of which (it gave no token), it may be. What a miss quotes of other conversations goes from all of the owner's lines, and a line that
    cannot be read goes altogether, since what it holds is not known.
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

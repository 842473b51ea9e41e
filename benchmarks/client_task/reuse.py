"""What of each request's prompt was reused, held against what a conversation that only grew could reuse. Pure, over the server's logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ENOUGH_FRAC = 0.95
Line = Mapping[str, Any]


def requests(entries: Iterable[Line], prompts: Sequence[Line]) -> list[dict[str, Any] | None]:
    """A row for each prompt, None for one that is not in the request log.

    append_only_tokens: of the longest earlier prompt whose tools are the same and whose messages begin this one; None if there is none.
    stored_tokens: the longest common beginning with an earlier prompt and its answer, in tokens: the most that could have been reused.
    reused_frac: of append_only_tokens.
    """
    logged = {entry["id"]: entry for entry in entries}
    return [_row(logged[each["id"]], each, prompts[:at]) if each["id"] in logged else None for at, each in enumerate(prompts)]


def _row(entry: Line, prompt: Line, earlier: Sequence[Line]) -> dict[str, Any]:
    report, usage = entry["report"] or {}, entry["usage"] or {}
    miss = report.get("miss") or {}
    append_only = max((len(each["prompt"]) for each in earlier if _begins(each, prompt)), default=None)
    reused = report.get("reused_tokens")
    return {
        "outcome": entry["outcome"],
        "error": entry["error"],
        "has_tools": bool(prompt.get("tools")),
        "num_messages": len(prompt.get("messages", ())),
        "prompt_tokens": entry["prompt_tokens"],
        "reused_tokens": reused,
        "computed_tokens": report.get("computed_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "source": report.get("source"),
        "miss": miss.get("kind", ""),
        "miss_at": " ".join(filter(None, [miss.get("where", ""), miss.get("field", "")])),
        "append_only_tokens": append_only,
        "stored_tokens": max((_num_common(prompt["prompt"], [*each["prompt"], *each["answer"]]) for each in earlier), default=0),
        "reused_frac": reused / append_only if append_only and reused is not None else None,
    }


def is_enough(rows: Iterable[Line]) -> bool:
    """Whether each request of a conversation that only grew reused what it should."""
    return all(row["reused_frac"] >= ENOUGH_FRAC for row in rows if row["reused_frac"] is not None)


def _begins(earlier: Line, prompt: Line) -> bool:
    messages = earlier.get("messages", [])
    return bool(messages) and earlier["tools"] == prompt.get("tools") and messages == prompt.get("messages", [])[: len(messages)]


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

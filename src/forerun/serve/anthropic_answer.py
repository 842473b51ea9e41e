"""The Anthropic messages dialect: a run's events to a message, streamed or whole. `anthropic.py` parses the requests.

Pure. A message is a list of blocks; a stream opens and closes them one after the other. Knows no engine and no HTTP.
Source: Anthropic's Messages API, version 2023-06-01.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from forerun.errors import BadRequestError
from forerun.serve.dialect import report_of
from forerun.serve.fields import arguments_of
from forerun.serve.problems import Problem
from forerun.serve.sse import event as frame
from forerun.values import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Done,
    Event,
    Job,
    ModelInfo,
    PrefillProgress,
    QueuePosition,
    Reasoning,
    Usage,
)

SIGNED = "forerun"  # clients drop thinking blocks without a signature
HIDDEN = "forerun:"  # prefix of the signature of a hidden thinking block: it holds the thoughts, so that the client sends them back


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request. shows_reasoning: False where the client wants a signature in place of the thoughts."""

    job: Job
    streams: bool
    ignored_fields: tuple[str, ...]
    shows_reasoning: bool

    @property
    def jobs(self) -> tuple[Job]:
        return (self.job,)


def reasoning_of(thinking: str, signature: str) -> str:
    """The thoughts in a block that a client sent back. Raises BadRequestError if the signature is ours, but damaged."""
    if not signature.startswith(HIDDEN):
        return thinking
    try:
        return b64decode(signature.removeprefix(HIDDEN), validate=True).decode()
    except ValueError as error:
        raise BadRequestError("messages: the signature of a thinking block is damaged", param="messages") from error


class Blocks:
    """The answer's blocks so far, and their events. A block is open until another begins or the answer ends."""

    def __init__(self, shows_reasoning: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._shows_reasoning = shows_reasoning
        self._is_open = False
        self._text = ""

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Add an event. Yields the values of content_block_start, content_block_delta and content_block_stop events."""
        match event:
            case Reasoning(text):
                yield from self._enter({"type": "thinking", "thinking": "", "signature": ""})
                yield from self._add(text, {"type": "thinking_delta", "thinking": text} if self._shows_reasoning else None)
            case Content(text):
                yield from self._enter({"type": "text", "text": ""})
                yield from self._add(text, {"type": "text_delta", "text": text})
            case CallStart(_, id, name):
                yield from self._close()
                yield from self._enter({"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                yield from self._add(text, {"type": "input_json_delta", "partial_json": text})
            case CallEnd() | Done():
                yield from self._close()

    def _enter(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._is_open and self.blocks[-1]["type"] == block["type"]:
            return
        yield from self._close()
        self._is_open, self._text = True, ""
        self.blocks.append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _add(self, text: str, delta: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        self._text += text
        if delta is not None:
            yield self._delta(delta)

    def _close(self) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open, block = False, self.blocks[-1]
        if block["type"] == "thinking":
            block["signature"] = SIGNED if self._shows_reasoning else HIDDEN + b64encode(self._text.encode()).decode()
            block["thinking"] = self._text if self._shows_reasoning else ""
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            block["text"] = self._text
        else:
            block["input"] = arguments_of(self._text)
        yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    @property
    def _index(self) -> int:
        return len(self.blocks) - 1


class _Response:
    """Common to streamed and whole responses."""

    def __init__(self, parsed: ParsedRequest, info: ModelInfo, *, created_unix_s: int) -> None:
        self._request = parsed
        self._blocks = Blocks(parsed.shows_reasoning)
        self._head = {"id": parsed.job.id, "type": "message", "role": "assistant", "model": info.name}

    def _ending(self, done: Done) -> dict[str, Any]:
        return {"stop_reason": self._stop_reason(done), "stop_sequence": done.stop_string or None}

    def _stop_reason(self, done: Done) -> str:
        if done.finish == "length":
            is_requested = done.usage.completion_tokens >= (self._request.job.max_tokens or 0)
            return "max_tokens" if is_requested else "model_context_window_exceeded"
        if done.finish == "loop":
            return "max_tokens"  # clients know no reason that is nearer; the report has the finish
        if done.finish == "calls":
            return "tool_use"
        return "stop_sequence" if done.stop_string else "end_turn"


class WholeResponse(_Response):
    """A message in one piece."""

    _done: Done | None = None

    def take(self, event: Event) -> None:
        """Add an event."""
        for _ in self._blocks.take(event):
            pass
        self._done = event if isinstance(event, Done) else self._done

    def body(self) -> dict[str, Any]:
        """The message object, after Done."""
        assert self._done is not None
        report = {"usage": usage(self._done.usage), "forerun": report_of(self._done, self._request.ignored_fields)}
        return self._head | {"content": self._blocks.blocks} | self._ending(self._done) | report


class StreamedResponse(_Response):
    """A message as server-sent events. message_start comes with the first prefill progress, which has the number of cached tokens."""

    _has_begun = False

    def frames(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        match event:
            case QueuePosition():
                yield _ping(asdict(event))
            case PrefillProgress():
                yield from self._begin(event.total_tokens, event.reused_tokens)
                yield _ping(asdict(event))
            case _:
                yield from (frame(value["type"], value) for value in self._blocks.take(event))
        if isinstance(event, Done):
            report = {"usage": usage(event.usage), "forerun": report_of(event, self._request.ignored_fields)}
            yield frame("message_delta", {"type": "message_delta", "delta": self._ending(event)} | report)
            yield frame("message_stop", {"type": "message_stop"})

    def keepalive(self) -> bytes:
        """A ping, which may come at any time."""
        return _ping({})

    def failed(self, problem: Problem) -> bytes:
        """An error event."""
        return frame("error", problem.anthropic_body())

    def _begin(self, prompt_tokens: int, cached_tokens: int) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            counts = usage(Usage(prompt_tokens, cached_tokens, 0, 0))
            message: dict[str, Any] = self._head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
            yield frame("message_start", {"type": "message_start", "message": message})


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts under Anthropic's names. Computed tokens are plain input: writing to the cache is not billed."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def _ping(progress: dict[str, Any]) -> bytes:
    return frame("ping", {"type": "ping"} | ({"forerun": progress} if progress else {}))

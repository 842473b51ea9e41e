"""A scripted HTTP server on a loopback socket with the responses of `forerun serve`. No model, no engine."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = b"data: [DONE]\n\n"


def report(source: str = "cold", reused: int = 0, computed: int = 10, **other: Any) -> dict[str, Any]:
    """A `forerun` object."""
    counts = {"source": source, "reused_tokens": reused, "computed_tokens": computed, "ttft_s": 0.5, "reason": ""}
    speeds = {"prefill_tok_per_s": 100.0, "decode_tok_per_s": 50.0}
    return {"session": "s", "layout": "contiguous", "step_kind": "eager", "numerics": "exact", **counts, **speeds, **other}


def stream(text: str, of: dict[str, Any], num_tokens: int = 4, finish: str = "stop") -> list[bytes]:
    """The frames of a streamed answer in two pieces, with progress before and usage after them."""
    prompt = of["reused_tokens"] + of["computed_tokens"]
    deltas = [{"role": "assistant"}, {"content": text[:2]}, {"content": text[2:]}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length" if finish == "loop" else finish}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": num_tokens}, "forerun": {"finish": finish} | of})
    progress = f": prefill {prompt // 2}/{prompt} ({of['reused_tokens']} cached)\n\n".encode()
    return [progress, *(frame(chunk) for chunk in chunks), DONE]


def frame(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(value)}\n\n".encode()


class Cut(list[bytes]):
    """Frames after which the connection is lost."""


@dataclass
class Wire:
    """A server's script, and the requests it got.

    answers: to the next chat requests, frames or (status, body). bodies, keys: of the requests so far. pending_writes: of the next
    responses to /health.
    """

    url: str = ""
    answers: deque[Any] = field(default_factory=deque)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    pending_writes: deque[int] = field(default_factory=deque)


@contextmanager
def serving() -> Iterator[Wire]:
    """A running scripted server."""
    wire = Wire()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(wire))
    wire.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(wire: Wire) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wire.keys.append(self.headers["authorization"])
            pending = wire.pending_writes.popleft() if wire.pending_writes else 0
            self._send(
                200,
                json.dumps(
                    {"status": "ok", "model": {"id": "scripted", "context_tokens": 40_960}, "bank": {"pending_writes": pending}}
                ).encode(),
            )

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            wire.keys.append(self.headers["authorization"])
            wire.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            answer = wire.answers.popleft()
            if isinstance(answer, tuple):
                self._send(answer[0], json.dumps(answer[1]).encode())
            else:
                self._send(200, b"".join(answer), "text/event-stream", num_missing=isinstance(answer, Cut))

        def _send(self, status: int, body: bytes, kind: str = "application/json", num_missing: int = 0) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body) + num_missing))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    return Handler

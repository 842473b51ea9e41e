"""A real engine behind a real socket, and what it renders of each request. Its model writes two letters and stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.engine.engines import Rig
from tests.serve.asking import serving, values
from tests.talking import tokenizer
from tests.waiting import LIMIT_S

from forerun.text.prompt import Prompt

CASES = Path(__file__).parents[1] / "data" / "cases"
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
COUNT = "/v1/messages/count_tokens"


def case(name: str) -> dict[str, Any]:
    """A case's file."""
    found: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    return found


class Answers:
    """Sends requests. prompt: that of the last one, as the engine has it."""

    def __init__(self, rig: Rig, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.prompt: Prompt
        encode = rig.engine.prompter.encode

        def encode_and_note(*args: Any, **options: Any) -> Prompt:
            self.prompt = encode(*args, **options)
            return self.prompt

        rig.engine.prompter.encode = encode_and_note  # type: ignore[method-assign]

    def post(self, path: str, body: dict[str, Any] | None = None, *, content: str | None = None) -> httpx.Response:
        """The response, whatever its status. content: the body as it stands."""
        sent = json.dumps(body) if content is None else content
        return httpx.post(f"{self._url}{path}", content=sent, headers={"content-type": "application/json"}, timeout=LIMIT_S)

    def report(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The `forerun` object of the response, which is the same streamed and whole, but for what was reused."""
        whole, streamed = self.post(path, body), self.post(path, body | {"stream": True})
        assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
        report: dict[str, Any] = whole.json()["forerun"]
        last = [each for each in map(_report_of, values(streamed.text)) if "rendering" in each][-1]
        assert [last[name] for name in ("rendering", "ignored_fields")] == [report[name] for name in ("rendering", "ignored_fields")]
        return report

    def text(self, path: str, body: dict[str, Any]) -> str:
        """What the template rendered, without escapes."""
        self.report(path, body)
        return tokenizer().decode(self.prompt.tokens)


def _report_of(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = event.get("forerun") or event.get("response", {}).get("forerun") or {}
    return found


@contextmanager
def answers(folder: Path | None = None, **options: Any) -> Iterator[Answers]:
    """A server, closed at the end. options: of the engine."""
    rig, stop = Rig(folder, **options), min(tokenizer().stop_ids)
    rig.family.script = lambda position, token, total: stop if position % 3 == 0 else 33
    rig.gate.open()
    try:
        with serving(rig.engine) as port:
            yield Answers(rig, port)
    finally:
        rig.engine.worker.close(LIMIT_S)

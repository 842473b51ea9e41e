"""A bank's folder with a real server process on it that tests can end and restart, and a way to send it requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.waiting import LIMIT_S

from forerun.demo.server import Server, serve_command
from forerun.models.load import DEMO_MODEL

NUM = 12


class Home:
    """bank: the folder; server: the one started last, under `exact` numerics."""

    def __init__(self, folder: Path, *options: str, model: Path) -> None:
        self.bank, self._log = folder / "bank", folder / "server.log"
        self.command = [*serve_command(model, self.bank), *options]
        self.start()

    def start(self) -> None:
        """Start a server; the previous one must have ended."""
        self.server = Server.start(self.command, self._log)

    def ask(self, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """The completion of NUM greedy tokens without reasoning, unless `body` sets otherwise; checks what holds for every completion."""
        sent = {"messages": messages, "max_tokens": NUM, "temperature": 0, "enable_thinking": False} | body
        response = httpx.post(f"{self.server.url}/v1/chat/completions", json=sent, timeout=LIMIT_S)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        report, usage = answer["forerun"], answer["usage"]
        assert report["reused_tokens"] + report["computed_tokens"] == usage["prompt_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == report["reused_tokens"]
        assert (report["layout"], report["numerics"]) == ("contiguous", "exact")
        return answer


@contextmanager
def home_at(folder: Path, *options: str, model: Path = DEMO_MODEL) -> Iterator[Home]:
    """A home in `folder`; its server is stopped at the end. options: of `forerun serve`."""
    home = Home(folder, *options, model=model)
    try:
        yield home
        home.server.stop()
    finally:
        home.server.kill()


def num_cancelled(url: str) -> int:
    """Number of requests whose clients disconnected."""
    metrics = httpx.get(f"{url}/metrics", timeout=LIMIT_S).text
    return sum(
        int(float(line.split()[-1])) for line in metrics.splitlines() if line.startswith('forerun_requests_total{outcome="cancelled"}')
    )


def text(answer: dict[str, Any]) -> str:
    """The text of a completion."""
    return str(answer["choices"][0]["message"]["content"])

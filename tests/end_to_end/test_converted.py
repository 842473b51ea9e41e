"""A model that `forerun models convert` wrote, served by a real process: drafts, a restart, the same answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from forerun.config import environ_without_settings
from forerun.demo.server import Server, serve_command
from forerun.models.load import DEMO_MODEL


def ask(server: Server, messages: list[dict[str, str]], **body: Any) -> dict[str, Any]:
    asked = {"messages": messages, "max_tokens": 24, "temperature": 0, "enable_thinking": False} | body
    response = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_converted_served_and_restored(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    command = [sys.executable, "-m", "forerun.cli", "models", "convert", str(DEMO_MODEL), str(folder), "--preset", "optimized-speed"]
    subprocess.run([*command, "--override", "*.self_attn.*=8"], check=True, env=environ_without_settings(), capture_output=True)
    start = [*serve_command(folder, tmp_path / "bank", "reference"), "--draft-depth", "2", "--eager"]
    messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
    with serving(start, tmp_path / "log") as server:
        first = ask(server, messages)
    assert sum(first["forerun"]["accepted"]) > 0
    messages += [{"role": "assistant", "content": text(first)}, {"role": "user", "content": "Thank you. Another one."}]
    with serving(start, tmp_path / "log") as server:
        second, plain = ask(server, messages), ask(server, messages, forerun={"bank": "bypass"})
    assert (second["forerun"]["source"], plain["forerun"]["source"]) == ("ssd", "cold")
    assert text(second) == text(plain)


@contextmanager
def serving(command: list[str], log: Path) -> Iterator[Server]:
    server = Server.start(command, log)
    try:
        yield server
        server.stop()
    finally:
        server.kill()

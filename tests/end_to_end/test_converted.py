"""A model written by `forerun models convert`, served by a real process: drafts, a restart, the same answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.end_to_end.home import home_at, text

from forerun.config import environ_without_settings
from forerun.models.load import DEMO_MODEL


def test_converted_served_and_restored(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    command = [sys.executable, "-m", "forerun.cli", "models", "convert", str(DEMO_MODEL), str(folder), "--preset", "optimized-speed"]
    subprocess.run([*command, "--override", "*.self_attn.*=8"], check=True, env=environ_without_settings(), capture_output=True)
    messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
    with home_at(tmp_path, "--draft-depth", "2", "--eager", model=folder) as home:
        first = home.ask(messages, max_tokens=24)
        assert sum(first["forerun"]["accepted"]) > 0
        messages += [{"role": "assistant", "content": text(first)}, {"role": "user", "content": "Thank you. Another one."}]
        home.server.stop()
        home.start()
        second, plain = home.ask(messages), home.ask(messages, forerun={"bank": "bypass"})
    assert (second["forerun"]["source"], plain["forerun"]["source"]) == ("ssd", "cold")
    assert text(second) == text(plain)

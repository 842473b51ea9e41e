from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import wire
from tests.cli.conftest import Ran

Forerun = Callable[..., Ran]


@pytest.fixture
def url() -> Iterator[str]:
    with wire.serving() as running:
        yield running.url


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_settings_are_shown_and_nothing_is_written(forerun: Forerun, url: str, home: Path) -> None:
    shown = forerun("connect", "claude-code", "--url", f"{url}/v1/")
    assert shown.code == 0
    assert f'"ANTHROPIC_BASE_URL": "{url}"' in shown.out
    assert "claude --settings ~/.claude/forerun.json" in shown.out
    assert list(home.iterdir()) == []


def test_writing_the_same_settings_again_needs_no_consent(forerun: Forerun, url: str, home: Path) -> None:
    for _ in range(2):
        assert forerun("connect", "codex", "--url", url, "--write").code == 0
    assert 'model = "scripted"' in (home / ".codex" / "forerun.config.toml").read_text()


@pytest.mark.parametrize(("typed", "is_changed"), [("y\n", True), ("n\n", False), ("", False)])
def test_another_file_is_not_overwritten_without_a_yes(
    forerun: Forerun, url: str, home: Path, monkeypatch: pytest.MonkeyPatch, typed: str, is_changed: bool
) -> None:
    file = home / ".aider.forerun.yml"
    file.write_text("model: mine\n")
    answer(monkeypatch, typed)
    ran = forerun("connect", "aider", "--url", url, "--write")
    assert (ran.code == 0) == is_changed
    assert (file.read_text() == "model: mine\n") != is_changed


def test_the_content_of_a_shared_file_stays(forerun: Forerun, url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / ".pi" / "agent" / "models.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"providers": {"ollama": {}}}')
    answer(monkeypatch, "y\n")
    assert forerun("connect", "pi", "--url", url, "--write").code == 0
    assert set(json.loads(file.read_text())["providers"]) == {"ollama", "forerun"}
    file.write_text("{")
    ran = forerun("connect", "pi", "--url", url)
    assert (ran.code, "cannot add to" in ran.err) == (1, True)


def test_as_json_and_with_a_key(forerun: Forerun, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_API_KEY", "secret")
    shown = json.loads(forerun("connect", "opencode", "--url", url, "--json").out)
    assert json.loads(shown["content"])["provider"]["forerun"]["options"]["apiKey"] == "{env:FORERUN_API_KEY}"
    assert "secret" not in json.dumps(shown)


def test_no_server_and_no_such_agent(forerun: Forerun) -> None:
    ran = forerun("connect", "codex", "--url", "http://127.0.0.1:1")
    assert (ran.code, "forerun serve" in ran.err) == (1, True)
    assert forerun("connect", "emacs").code == 2

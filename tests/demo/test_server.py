"""Server processes as the demonstration uses them, with an engine that has no model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.waiting import LIMIT_S

from forerun.demo.server import Server, serve_command
from forerun.errors import ForerunError

DOUBLE = Path(__file__).parents[1] / "cli" / "serve_double.py"


def command(close_s: float, tmp_path: Path, *options: str) -> list[str]:
    python, _, _, *arguments = serve_command(tmp_path / "model", tmp_path / "bank")
    return [python, str(DOUBLE), str(close_s), *arguments, *options]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server.start(command(0, tmp_path), tmp_path / "log")
    yield server
    server.kill()


def test_it_answers_once_started(server: Server, tmp_path: Path) -> None:
    assert httpx.get(server.url + "/health", timeout=LIMIT_S).json()["status"] == "ok"
    assert (server.line["bank_dir"], server.line["numerics"]) == (str(tmp_path / "bank"), "exact")
    server.wait_until_written()


def test_stop_lets_it_close(server: Server, tmp_path: Path) -> None:
    server.stop()
    assert "closed" in (tmp_path / "log").read_text()


def test_kill_does_not(server: Server, tmp_path: Path) -> None:
    server.kill()
    assert "clos" not in (tmp_path / "log").read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_a_server_that_does_not_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ForerunError, match=r"exit code 2.*decode_layout = 'precise'") as caught:
        Server.start(command(0, tmp_path, "--decode-layout", "precise"), tmp_path / "log")
    assert str(tmp_path / "log") in caught.value.hint


def test_a_nonzero_exit_code_is_an_error(tmp_path: Path) -> None:
    server = Server.start(command(0, tmp_path), tmp_path / "log")
    server.kill()
    with pytest.raises(ForerunError, match="exit code -9"):
        server.stop()


def test_the_users_settings_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CONTEXT", "77")
    server = Server.start(command(0, tmp_path), tmp_path / "log")
    server.stop()
    assert server.line["context_tokens"] == 4096
    assert os.environ["FORERUN_CONTEXT"] == "77"


def test_the_command_serves_the_model(tmp_path: Path) -> None:
    assert serve_command(tmp_path, tmp_path / "b")[:5] == [sys.executable, "-m", "forerun.cli", "serve", str(tmp_path)]

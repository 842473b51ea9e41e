"""Everyday errors against real server processes: each is reported in the API's format, and the server continues."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import LIMIT_S

from forerun.demo.server import Server, serve_command
from forerun.models.load import DEMO_MODEL

CONTEXT = 512
STORED = {"messages": [{"role": "user", "content": "Remember the number forty-two."}], "max_tokens": 4, "temperature": 0}
HELLO = [{"role": "user", "content": "Hello!"}]


def command(bank: Path, *more: object) -> list[str]:
    return [*serve_command(DEMO_MODEL, bank), "--eager", *map(str, more)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("home")
    server = Server.start(command(folder / "bank", "--context", CONTEXT), folder / "server.log")
    assert ask(server, json.dumps(STORED).encode()).status_code == 200
    yield server
    assert ask(server, json.dumps(STORED).encode()).json()["forerun"]["computed_tokens"] == 0, "what was stored before is lost"
    server.stop()


def ask(server: Server, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=sent, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "text"),
    [
        (b'{"messages": [', 400, "bad_request", None, "the body is not JSON"),
        (b"[]", 400, "bad_request", None, "list and not an object"),
        ({"messages": "Hello!"}, 400, "bad_request", "messages", "list"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "bad_request", "messages[0].content", "string"),
        ({"messages": []}, 400, "bad_request", "messages", "at least 1 item"),
        ({"messages": [{"role": "user"}]}, 400, "bad_request", "messages[0].content", "needs content"),
        ({"messages": HELLO, "temperature": "hot"}, 400, "bad_request", "temperature", "number"),
        ({"messages": HELLO, "n": 0}, 400, "bad_request", "n", "greater than"),
        ({"messages": [HELLO[0] | {"content": "a b " * 600}]}, 400, "context_length_exceeded", "messages", f"{CONTEXT - 1} maximum"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_cannot_be_served(server: Server, body: Any, status: int, code: str, param: str | None, text: str) -> None:
    response = ask(server, body if isinstance(body, bytes) else json.dumps(body).encode())
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"], error["param"]) == (status, "invalid_request_error", code, param)
    assert text in error["message"]
    assert error.get("hint") or param, "neither a hint nor a field"


def test_a_request_to_a_wrong_host_route_or_method(server: Server) -> None:
    refusals = [
        ask(server, b"{}", content_type="text/plain"),
        ask(server, b"{}", host="elsewhere.example"),
        httpx.post(f"{server.url}/v1/nothing", json={}, timeout=LIMIT_S),
        httpx.get(f"{server.url}/v1/chat/completions", timeout=LIMIT_S),
    ]
    assert [refusal.status_code for refusal in refusals] == [415, 403, 404, 405]
    assert all(refusal.json()["error"]["hint"] for refusal in refusals)


def refused(*arguments: object) -> tuple[int, str]:
    """The exit code and stderr of a server that does not start."""
    command = [sys.executable, "-m", "forerun.cli", *map(str, arguments)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "\nhint: " in ran.stderr, ran.stderr
    return ran.returncode, ran.stderr


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    code, err = refused("serve", "Qwen/Qwen3.5-0.8B", "--port", 0, "--bank-dir", tmp_path)
    assert code == 1
    assert "Qwen/Qwen3.5-0.8B" in err


def test_a_context_limited_by_memory_is_a_warning(tmp_path: Path) -> None:
    options = ("--eager", "--bank-ram-bytes", "100TB", "--bank-disk-bytes", 0)
    server = Server.start([*serve_command(DEMO_MODEL, tmp_path), *map(str, options)], tmp_path / "log")
    server.stop()
    assert "warning: the context is 4,096 of the model's 32,768 tokens" in (tmp_path / "log").read_text()
    assert server.line["context_tokens"] == 4096


def test_a_port_in_use(server: Server, tmp_path: Path) -> None:
    port = httpx.URL(server.url).port
    code, err = refused("serve", "--port", port, "--bank-dir", tmp_path)
    assert (code, err.splitlines()[0]) == (1, f"forerun: cannot listen on 127.0.0.1:{port}: it is taken")


def test_the_banks_folder_of_another_running_server_is_refused_before_weights_are_read(server: Server, tmp_path: Path) -> None:
    for file in DEMO_MODEL.iterdir():
        (tmp_path / file.name).symlink_to("/dev/null" if file.suffix == ".safetensors" else file)
    folder = server.line["bank_dir"]
    code, err = refused("serve", tmp_path, "--port", 0, "--bank-dir", folder)
    assert (code, err.splitlines()[0]) == (1, f"forerun: {folder} belongs to another running server")


def test_a_banks_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = refused("serve", "--port", 0, "--bank-dir", tmp_path / "file" / "bank")
    assert code == 1
    assert err.startswith(f"forerun: cannot open {tmp_path}/file/bank: Not a directory\nhint: ")

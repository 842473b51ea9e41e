"""`forerun serve` as a real process with an engine that has no model: start-up line, signals, ports, limits."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import LIMIT_S

from forerun.cli.serve import raise_file_limit

DOUBLE = Path(__file__).with_name("serve_double.py")


@contextmanager
def serving(*arguments: object, close_s: float = 0.0, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The program, still starting. before: commands of the shell that starts it."""
    command = [sys.executable, str(DOUBLE), str(close_s), "serve", *map(str, arguments)]
    if before:
        command = ["sh", "-c", f'{before}; exec "$@"', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_json_start_up_line(tmp_path: Path) -> None:
    with serving("--port", 0, "--json", "--bank-dir", tmp_path, "--context", 99) as process:
        info = json.loads(line(process))
        health = httpx.get(info["url"] + "/health", timeout=LIMIT_S).json()
    assert health["status"] == "ok"
    assert info["pid"] == process.pid
    assert (info["model"], info["demo"], info["context_tokens"], info["numerics"], info["kernels"]) == ("double", True, 99, "exact", "none")
    assert info["bank_dir"] == str(tmp_path)
    assert info["notes"] == ["norms: told"]


def test_the_start_up_line(tmp_path: Path) -> None:
    with serving("--port", 0, "--bank-dir", tmp_path) as process:
        info = line(process)
        process.terminate()
        assert process.communicate(timeout=LIMIT_S)[0] == "", "more than a line, of weights that nobody asked about"
    assert info.startswith("forerun: double (bundled, for trying things out) · cpu · ")
    assert f" · bank {tmp_path} · http://127.0.0.1:" in info
    assert not info.endswith(":0/v1\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with serving("--port", 0, "--bank-disk-bytes", 0) as process:
        assert "nothing stored on disk" in line(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "")
    stopping, *engine, stopped = err.splitlines()
    assert engine == ["closing within 20 s", "closed"]
    assert stopping.endswith("Z stopping: requests have 20 s to end, a second signal ends all at once")
    assert stopped.endswith("Z stopped")


def test_a_second_signal_ends_it_at_once() -> None:
    with serving("--port", 0, close_s=10 * LIMIT_S) as process:
        line(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert " stopping: " in process.stderr.readline()
        assert process.stderr.readline() == "closing within 20 s\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 1


def test_a_second_hangup_lets_it_end_in_order() -> None:
    with serving("--port", 0, close_s=1.0) as process:
        line(process)
        assert process.stderr is not None
        process.send_signal(signal.SIGHUP)
        assert " stopping: " in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=LIMIT_S) == 0


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    with serving("--port", 0, "--json", before="trap '' HUP") as process:
        url = json.loads(line(process))["url"]
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{url}/health", timeout=LIMIT_S, trust_env=False).status_code == 200
        process.terminate()
        assert " stopping: " in process.communicate(timeout=LIMIT_S)[1]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "is_reached"), [("::", (True, True)), ("::1", (False, True)), ("0.0.0.0", (True, False))])
def test_the_families_of_an_address(tmp_path: Path, host: str, is_reached: tuple[bool, bool]) -> None:
    (tmp_path / "keys").write_text("me:secret\n")
    with serving("--host", host, "--port", 0, "--json", "--api-key-file", tmp_path / "keys") as process:
        port = httpx.URL(json.loads(line(process))["url"]).port
        assert (answers(f"http://127.0.0.1:{port}"), answers(f"http://[::1]:{port}")) == is_reached


def answers(url: str) -> bool:
    try:
        response = httpx.get(f"{url}/health", headers={"x-api-key": "secret"}, timeout=LIMIT_S, trust_env=False)
    except httpx.ConnectError:
        return False
    return response.status_code == 200


def test_the_json_log_has_the_id_of_the_response() -> None:
    with serving("--port", 0, "--json", "--log-format", "json") as process:
        url = json.loads(line(process))["url"]
        body = {"messages": [{"role": "user", "content": "secret"}]}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S)
        assert response.status_code == 500
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
    lines = [json.loads(each) for each in err.splitlines() if each.startswith("{")]
    own = [each for each in lines if each.get("request_id") == response.headers["x-request-id"]]
    assert {each["level"] for each in own} == {"info", "error"}
    assert any(each["message"].startswith("POST /v1/chat/completions: 500 after ") for each in own)
    assert any("NotImplementedError" in each.get("exception", "") for each in own)
    assert lines[-1]["message"] == "stopped"
    assert "secret" not in err


def test_a_server_without_file_descriptors_logs_it_once_and_recovers() -> None:
    with serving("--port", 0, "--json", "--bank-disk-bytes", 0, before="ulimit -n 64") as process, ExitStack() as idle:
        url = json.loads(line(process))["url"]
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(url).port)))
        assert httpx.get(f"{url}/health", timeout=LIMIT_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
    assert err.count("no file descriptor is left") == 1, err
    assert "Traceback" not in err
    assert process.returncode == 0


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((256, INFINITE), (8192, INFINITE)),
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (8192, 1 << 20)),
        ((20_000, 20_000), (20_000, 20_000)),
        ((INFINITE, INFINITE), (INFINITE, INFINITE)),
    ],
)
def test_a_low_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int]) -> None:
    limits = {resource.RLIMIT_NOFILE: before}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    raise_file_limit()
    assert limits == {resource.RLIMIT_NOFILE: after}


def test_a_port_that_is_taken(forerun: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = forerun("serve", "--port", port)
    assert ran.code == 1
    hint = "another server may be running; `--port 0` takes a free port"
    assert ran.err == f"forerun: cannot listen on 127.0.0.1:{port}: it is taken\nhint: {hint}\n"


def test_an_address_of_another_machine(forerun: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("me:secret\n")
    ran = forerun("serve", "--host", "192.0.2.1", "--port", 0, "--api-key-file", tmp_path / "keys")
    assert ran.code == 1
    assert ran.err.startswith("forerun: cannot listen on 192.0.2.1:0: ")
    assert ran.err.endswith("hint: see --host and --port\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--host", "0.0.0.0"), "an API key is needed"),
        (("--port", "70000"), "port = 70000 (from command line)"),
        (("--bank-ram-bytes", "lots"), "bank_ram_bytes = 'lots' (from command line): not a size"),
        (("--decode-layout", "precise"), "decode_layout = 'precise' (from command line)"),
    ],
)
def test_impossible_settings(forerun: Callable[..., Any], arguments: tuple[str, ...], complaint: str) -> None:
    ran = forerun("serve", *arguments)
    assert ran.code == 2
    assert complaint in ran.err

"""What users of other servers reported about the wire: tests/data/cases, numbers 04, 07, 08, 10, 11, 12, 14, 17 and 19."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import wire
from tests.cli import conftest
from tests.cli.test_serve import line
from tests.cli.test_serve import serving as serve
from tests.serve.asking import HeldClock, ask, serving
from tests.serve.engine_double import Engine
from tests.waiting import LIMIT_S

from forerun.config import load, prepare
from forerun.errors import ConfigError, ForerunError
from forerun.hub import fetch, pull
from forerun.serve.remote import RemoteSessions

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

forerun = conftest.forerun
CASES = Path(__file__).parents[1] / "data" / "cases"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress, "deflate": zlib.compress}


def case(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text())


def client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=LIMIT_S)


def test_04_compressed_bodies() -> None:
    request, body = case("04-compressed-body")["request"], b'{"input": "hi", "max_output_tokens": 4}'
    with serving(Engine()) as port, client(port) as to:
        for coding, compress in COMPRESS.items():
            headers = request["headers"] | {"content-encoding": coding}
            answers = [to.post(request["path"], content=compress(each), headers=headers) for each in (body, bytes((32 << 20) + 1))]
            assert [each.status_code for each in answers] == [200, 413]
            assert answers[0].json()["output"][0]["content"][0]["text"] == "Hello"
        other = to.post(request["path"], content=body, headers=request["headers"] | {"content-encoding": "br"})
    assert other.status_code == 415
    assert "br" in other.json()["error"]["message"]


@pytest.mark.parametrize("request_", case("07-host-names")["requests"], ids=lambda each: each["headers"]["host"])
def test_07_host_names(request_: dict[str, Any]) -> None:
    is_local = request_["headers"]["host"].split(":")[0] in ("host.docker.internal", "host.containers.internal", "localhost.", "0.0.0.0")
    allowed = ("llm.home.lan", "*.ts.net")
    for options, status in (
        ({}, 200 if is_local else 403),
        ({"allowed_hosts": allowed}, 200),
        ({"keys": {"a": "k"}}, 200),
    ):
        with serving(Engine(), **options) as port, client(port) as to:
            headers = request_["headers"] | {"authorization": "Bearer k"}
            assert to.request(request_["method"], request_["path"], headers=headers).status_code == status


def test_07_the_setting() -> None:
    with serve("--port", 0, "--json", "--allowed-hosts", "LLM.home.lan., *.ts.net") as process:
        url = json.loads(line(process))["url"]
        for host, status in (("llm.home.lan", 200), ("box.tailnet.ts.net", 200), ("evil.example", 403)):
            assert httpx.get(f"{url}/v1/models", headers={"host": host}, timeout=LIMIT_S, trust_env=False).status_code == status


ENVIRONMENTS = [command["environment"] for command in case("08-proxy-environment")["commands"]]
ENVIRONMENTS += [{"all_proxy": "foo://x:1"}, {"http_proxy": "http://x:port"}, {"HTTP_PROXY": "socks4://127.0.0.1:9"}]


@pytest.fixture(params=ENVIRONMENTS, ids=lambda each: "-".join(*each.items()))
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return dict(request.param)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.usefixtures("proxy")
def test_08_a_server_on_this_machine_is_reached_past_every_proxy(
    forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    with wire.serving() as server:
        url = server.url.replace("127.0.0.1", name)
        server.answers.append(wire.stream("good day", wire.report()))
        ran = [forerun("connect", "opencode", "--url", url), forerun("chat", "--url", url)]
    assert [each.code for each in ran] == [0, 0]
    assert "good day" in ran[1].out


@pytest.mark.usefixtures("proxy")
def test_08_stored_conversations_are_reached_past_every_proxy(tmp_path: Path) -> None:
    with serving(Engine()) as port:
        sessions = RemoteSessions(f"http://127.0.0.1:{port}", "")
        for coroutine in (sessions.all("", 9), sessions.wipe("")):
            with pytest.raises(StopIteration) as returned:
                coroutine.send(None)
            assert not returned.value.value
        with pytest.raises(StopIteration) as returned:
            sessions.export("", "x", with_state=False).send(None)
        with pytest.raises(ForerunError, match="the server answers: there is no conversation"):
            list(returned.value.value)


def test_08_a_download_and_a_server_elsewhere_name_the_proxy(
    proxy: dict[str, str], monkeypatch: pytest.MonkeyPatch, forerun: Callable[..., Any]
) -> None:
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    for command in (("models", "pull", "a/b"), ("connect", "codex", "--url", "http://192.0.2.1:9")):
        if command[0] == "models" and "HTTP_PROXY" in proxy and "socks" not in proxy["HTTP_PROXY"]:
            continue  # it is not used for https
        ran = forerun(*command)
        assert ran.code == 1
        assert "Traceback" not in ran.err
        assert "proxy" in ran.err


def test_08_a_download_from_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(Engine()) as port:
        source = fetch.Source(f"http://127.0.0.1:{port}/openapi.json", {}, 1, "")
        assert b"openapi" in b"".join(fetch._blocks(source, 0))


def test_08_passwords_of_proxies_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:secret@127.0.0.1:9")
    monkeypatch.setattr(pull.constants, "ENDPOINT", "https://192.0.2.1")
    _, hint = pull._explanation("a/b", "main", OSError("refused"))
    assert "127.0.0.1:9" in hint
    assert "secret" not in hint


def test_10_file_descriptors() -> None:
    with serve("--port", 0, "--json", "--bank-disk-bytes", 0, before="ulimit -Sn 64") as process, ExitStack() as idle:
        url = httpx.URL(json.loads(line(process))["url"])
        connections = [idle.enter_context(socket.create_connection((url.host, url.port))) for _ in range(90)]
        for _ in range(4):
            assert httpx.get(f"{url}/health", timeout=LIMIT_S, trust_env=False).status_code == 200
        for connection in connections:
            connection.settimeout(LIMIT_S)
            assert connection.recv(1) == b"", "one that never sends a byte is closed"
        process.terminate()
        _, err = process.communicate(timeout=LIMIT_S)
    assert len(err.splitlines()) < 10, err


def test_11_keep_alive() -> None:
    (step,) = case("11-keep-alive")["steps"]
    with serve("--port", 0, "--json") as process, ExitStack() as closes:
        url = httpx.URL(json.loads(line(process))["url"])
        connection = closes.enter_context(closing(HTTPConnection(str(url.host), url.port, timeout=LIMIT_S)))
        connection.request("GET", "/v1/models")
        answer, used = connection.getresponse(), connection.sock
        assert (answer.status, answer.headers["keep-alive"], bool(answer.read())) == (200, "timeout=75", True)
        time.sleep(float(step.split("wait ")[1].split(" s")[0]))
        connection.request("GET", "/v1/models")
        assert (connection.getresponse().status, connection.sock) == (200, used)


def test_11_the_setting() -> None:
    with serve("--port", 0, "--json", "--keep-alive-s", 1) as process:
        url = httpx.URL(json.loads(line(process))["url"])
        with socket.create_connection((url.host, url.port), timeout=LIMIT_S) as connection:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # to the end of the connection
    assert b"keep-alive: timeout=1\r\n" in answer.lower()


@pytest.mark.parametrize(("num_bytes", "status"), [(180_000, 200), (2_000_000, 200)])
def test_12_a_slow_body(num_bytes: int, status: int) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * num_bytes}]}).encode()

    async def slowly() -> Any:
        for start in range(0, len(body), 7000):
            await asyncio.sleep(0.5)
            yield body[start : start + 7000]

    headers = {"content-type": "application/json"}
    path = "/v1/messages/count_tokens"
    assert ask(Engine(), "POST", path, content=slowly(), headers=headers, loop=HeldClock).status_code == status


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an entry in the list of users, and no folder named."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def missing(uid: int) -> object:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", missing)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("command", [("serve", "--port", 0), ("doctor",), ("models", "ls"), ("bank", "ls"), ("report",)])
def test_14_no_home(forerun: Callable[..., Any], command: tuple[object, ...]) -> None:
    ran = forerun(*command)
    assert ran.code in (1, 2)
    assert "Traceback" not in ran.err
    assert "HOME" in ran.err + ran.out


@pytest.mark.usefixtures("homeless")
def test_14_no_home_is_needed_if_all_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = load({"request_log": tmp_path / "requests.jsonl"})
    prepare(config)
    assert config.bank_path == tmp_path / "forerun" / "bank"
    with pytest.raises(ConfigError, match="no home folder"):
        assert load({}).request_log_path
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load({}).request_log_path == tmp_path / "forerun" / "requests.jsonl"


@pytest.mark.parametrize("origin", [command.split()[-1] for command in case("17-origins-of-apps")["commands"]])
def test_17_origins_of_apps(origin: str) -> None:
    with serve("--port", 0, "--json", "--cors-origins", origin) as process:
        url = json.loads(line(process))["url"]
        sent = origin.removesuffix("/")
        answer = httpx.get(f"{url}/v1/models", headers={"origin": sent}, timeout=LIMIT_S, trust_env=False)
        other = httpx.get(f"{url}/v1/models", headers={"origin": f"{sent}x"}, timeout=LIMIT_S, trust_env=False)
    assert answer.headers["access-control-allow-origin"] == sent
    assert "access-control-allow-origin" not in other.headers


def test_17_all_origins_are_refused_with_the_reason(forerun: Callable[..., Any]) -> None:
    ran = forerun("serve", "--cors-origins", "*")
    assert ran.code == 2
    assert "'*' would let every web page" in ran.err


def test_19_upgrade_and_models() -> None:
    upgrade, models = case("19-upgrade-and-models")["requests"]
    with serve("--port", 0, "--json") as process:
        url = json.loads(line(process))["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=LIMIT_S) as to:
            answer = to.request(upgrade["method"], upgrade["path"], headers=upgrade["headers"])
            listed = to.get(models["path"]).json()
        process.terminate()
        _, err = process.communicate(timeout=LIMIT_S)
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "HTTP/1.1")
    assert answer.json()["error"]["code"] == "upgrade_required"
    assert (listed["models"], [model["id"] for model in listed["data"]]) == ([], ["double"])
    assert "pip install" not in err

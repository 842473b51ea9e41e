"""The stored conversations over HTTP, and with `forerun bank` while the server runs: a real engine, two owners, a real socket."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote

import httpx
import pytest
from tests.cli.conftest import forerun
from tests.engine.engines import Rig
from tests.records import files_under
from tests.serve.asking import serving
from tests.waiting import LIMIT_S, wait_for

from forerun.bank.archive import Manifest, chunks
from forerun.cli.session_access import run
from forerun.engine.request_recorder import RequestLog
from forerun.request_log.entry import decode
from forerun.request_log.file import LogFile
from forerun.serve.remote import RemoteSessions
from forerun.serve.request_guard import BODY_LIMIT_BYTES
from forerun.state.record import tokens_of

TAR = {"content-type": "application/x-tar"}
KEYS = {"ann": "key-a", "bob": "key-b"}
ODD = "a/b c?d#é"  # an id that must be spelled out in an address
SESSIONS = "/v1/forerun/sessions"
Ask = Callable[..., httpx.Response]
Forerun = Callable[..., Any]
__all__ = ["forerun"]


class Server:
    """A server and the folder of its bank."""

    def __init__(self, folder: Path, port: int, rig: Rig) -> None:
        self.folder, self.url, self.rig = folder, f"http://127.0.0.1:{port}", rig

    def ask(self, method: str, path: str, owner: str = "ann", **options: Any) -> httpx.Response:
        headers = {"x-api-key": KEYS[owner], **options.pop("headers", {})}
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=LIMIT_S, **options)

    def talk(self, session: str, text: str, owner: str = "ann") -> dict[str, Any]:
        body = {"prompt": text, "max_tokens": 3, "temperature": 0, "forerun": {"session": session}}
        found: dict[str, Any] = self.ask("POST", "/v1/completions", owner, json=body).json()["forerun"]
        return found

    def sessions(self, owner: str = "ann") -> dict[str, Any]:
        return {each["id"]: each for each in self.ask("GET", SESSIONS, owner).json()["data"]}

    def written(self, session: str) -> dict[str, Any]:
        """One of Ann's conversations, once it is on disk."""
        wait_for(lambda: not self.rig.engine.health().bank.pending_writes)
        found: dict[str, Any] = self.ask("GET", at(session)).json()
        return found


def at(session: str) -> str:
    return f"{SESSIONS}/{quote(session, safe='')}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sessions") / "bank"
    log = RequestLog(LogFile(folder.with_name("requests.jsonl"), 1 << 20), "fake", with_content=True)
    rig = Rig(folder, forgets=True, log=log)
    rig.gate.open()
    with serving(rig.engine, keys=KEYS) as port:
        rig.engine.announce(f"http://127.0.0.1:{port}")
        yield Server(folder, port, rig)
    rig.engine.worker.close(LIMIT_S)
    log.file.close()


def test_a_conversation_is_listed_shown_named_pinned_and_removed(server: Server) -> None:
    server.talk(ODD, "What is the capital of France?")
    info = server.written(ODD)
    assert server.sessions()[ODD] == info
    assert (info["state"], info["stored_tokens"], info["turns"]) == ("ssd", info["tokens"], 1)
    changed = server.ask("PATCH", at(ODD), json={"name": "capitals", "pinned": True}).json()
    assert changed == info | {"name": "capitals", "pinned": True}
    assert server.ask("PATCH", at(ODD), json={"pinned": False}).json() == info | {"name": "capitals"}
    assert server.talk(ODD, "What is the capital of France?")["reused_tokens"] > 0
    assert server.ask("DELETE", at(ODD)).json() == {"id": ODD, "deleted": True}
    assert ODD not in server.sessions()
    assert server.talk(ODD, "What is the capital of France?")["source"] == "cold"


@pytest.mark.parametrize("body", [{"pinnde": True}, {"pinned": "yes"}, {"name": 3}, {"name": "x" * 201}])
def test_an_invalid_change_is_refused(server: Server, body: dict[str, Any]) -> None:
    server.talk("mine", "hello")
    refused = server.ask("PATCH", at("mine"), json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(body)))


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PATCH", {"pinned": True}), ("DELETE", None), ("POST", {})])
def test_another_owners_conversation_is_invisible(server: Server, method: str, body: Any) -> None:
    server.talk("private", "a text of Ann's", "ann")
    assert "private" not in server.sessions("bob")
    theirs, none = (server.ask(method, at(id) + "/fork" * (method == "POST"), "bob", json=body) for id in ("private", "nowhere"))
    assert theirs.status_code == none.status_code == 404
    assert theirs.text.replace("private", "nowhere") == none.text
    assert server.talk("private", "a text of Ann's", "bob")["reused_tokens"] == 0
    server.ask("DELETE", at("private"), "bob")
    assert server.ask("GET", at("private") + "/export", "bob").status_code == 404
    assert server.talk("private", "a text of Ann's", "ann")["reused_tokens"] > 0


@pytest.mark.parametrize("id", ["x/export", "x/fork", "import", "a%2Fb", "a b/ü"])
def test_an_id_may_look_like_a_route(server: Server, id: str) -> None:
    server.talk("x", "one that has half of its name")
    server.talk(id, "one beginning")
    assert server.written(id)["id"] == id
    assert server.ask("POST", at(id) + "/fork", json={"id": f"{id} too"}).json()["id"] == f"{id} too"
    assert server.ask("GET", at(id) + "/export").headers["content-type"] == "application/x-tar"
    assert server.ask("POST", at(id), json={"id": "none"}).status_code in (405, 415), "nothing is done to x"
    assert server.ask("DELETE", at(id)).json() == {"id": id, "deleted": True}
    assert {"x", f"{id} too"} <= server.sessions().keys()
    assert id not in server.sessions()


def test_a_fork_continues_independently(server: Server) -> None:
    report = server.talk("first", "one beginning")
    made = server.ask("POST", at("first") + "/fork", json={"id": "branch", "name": "the other way"}).json()
    assert (made["id"], made["name"], made["state"], made["tokens"]) == (
        "branch",
        "the other way",
        "ssd",
        server.written("first")["tokens"],
    )
    assert server.talk("branch", "one beginning")["session"] == "branch" != report["session"]
    refused = server.ask("POST", at("first") + "/fork", json={"id": "branch"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "id")
    server.ask("DELETE", at("first"))
    assert server.talk("branch", "one beginning")["reused_tokens"] > 0


@pytest.mark.parametrize("act", ["remove", "wipe"])
def test_removing_a_conversation_removes_its_texts_from_the_request_log(server: Server, act: str) -> None:
    log = server.folder.with_name("requests.jsonl")
    for session, owner in (("gone", "ann"), ("kept", "ann"), ("theirs", "bob")):
        server.talk(session, f"a secret of {session} {act}", owner)
    assert all(f"a secret of {session} {act}" in log.read_text() for session in ("gone", "kept", "theirs"))
    num_lines = len(log.read_text().splitlines())
    server.ask("DELETE", at("gone") if act == "remove" else SESSIONS)
    found = [session for session in ("gone", "kept", "theirs") if f"a secret of {session} {act}" in log.read_text()]
    assert found == (["kept", "theirs"] if act == "remove" else ["theirs"])
    assert len(log.read_text().splitlines()) == num_lines
    assert all(decode(line).report for line in log.read_text().splitlines())
    assert (server.sessions() == {}) == (act == "wipe")
    server.talk("after", "the log continues")
    assert "the log continues" in log.read_text()


def test_no_word_of_an_answer_stays_in_the_folder(server: Server) -> None:
    request = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 30, "forerun": {"session": "answered"}}
    message = server.ask("POST", "/v1/chat/completions", json=request | {"temperature": 0}).json()["choices"][0]["message"]
    text = message["reasoning_content"] or message["content"]
    server.written("answered")
    words = [json.dumps(text[start : start + 12])[1:-1].encode() for start in range(0, len(text) - 12, 6)]

    def holders() -> list[str]:
        return [path.name for path in files_under(server.folder) if any(word in path.read_bytes() for word in words)]

    assert len(words) > 4
    assert holders() != []
    server.ask("DELETE", at("answered"))
    assert holders() == []


@pytest.mark.parametrize(("state", "expected"), [("true", ("imported", "")), ("false", ("computed", "it holds no state"))])
def test_a_conversation_is_exported_and_imported(server: Server, state: str, expected: tuple[str, str]) -> None:
    server.talk("abroad", "a text that travels")
    server.ask("PATCH", at("abroad"), json={"name": "traveller"})
    before = server.written("abroad")
    archive = server.ask("GET", at("abroad") + "/export", params={"state": state})
    assert archive.headers["content-type"] == "application/x-tar"
    server.ask("DELETE", at("abroad"))
    made = server.ask("POST", f"{SESSIONS}/import", content=archive.content, headers=TAR).json()
    assert (made["state"], made["reason"]) == expected
    after = server.written("abroad")
    assert (after["name"], after["tokens"], after["state"]) == ("traveller", before["tokens"], "ssd")
    assert server.talk("abroad", "a text that travels")["reused_tokens"] > 0
    again = server.ask("POST", f"{SESSIONS}/import", content=archive.content, headers=TAR)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "id")
    named = server.ask("POST", f"{SESSIONS}/import", "bob", content=archive.content, headers=TAR, params={"id": f"copy {state}"}).json()
    assert (named["session"]["id"], named["session"]["tenant"]) == (f"copy {state}", "bob")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [(b"no tar", "application/x-tar", 400), (b"{}", "application/json", 415), (b"", "text/plain", 415), (b"", "application/x-tar", 400)],
)
def test_an_invalid_archive_is_refused(server: Server, content: bytes, kind: str, status: int) -> None:
    refused = server.ask("POST", f"{SESSIONS}/import", content=content, headers={"content-type": kind})
    assert refused.status_code == status
    assert server.ask("POST", "/v1/completions", content=b"{}", headers=TAR).status_code == 415


def test_an_archive_that_is_too_large_gets_a_hint(server: Server) -> None:
    refused = server.ask("POST", f"{SESSIONS}/import", content=bytes(BODY_LIMIT_BYTES + 1), headers=TAR)
    assert (refused.status_code, "directly" in refused.text) == (413, True)


def test_a_failed_import_leaves_nothing(server: Server) -> None:
    server.talk("fine", "a text that is spoilt on its way, " * 3)
    server.written("fine")
    archive = server.ask("GET", at("fine") + "/export").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {member.name: cast(IO[bytes], tar.extractfile(member)).read() for member in tar}
    manifest, tokens = json.loads(found["manifest.json"]), found["tokens"][:-4] + b"\xff\xff\xff\x7f"
    changed = manifest | {"id": "spoilt", "snapshots": [4, manifest["num_tokens"]], "tokens_sha256": sha256(tokens).hexdigest()}
    spoilt = b"".join(chunks(Manifest.model_validate_json(json.dumps(changed)), tokens_of(tokens), ()))
    assert server.ask("POST", f"{SESSIONS}/import", content=spoilt, headers=TAR).status_code == 400
    assert "spoilt" not in server.sessions()


@pytest.mark.parametrize("id", [".", "..", "line\n", "\x00", ""])
def test_an_id_must_be_possible_in_a_url(server: Server, id: str) -> None:
    """A client that asks for "SESSIONS/." to be removed would ask for SESSIONS."""
    server.talk("first", "one beginning")
    request = {"prompt": "hello", "max_tokens": 1, "forerun": {"session": id}}
    assert server.ask("POST", "/v1/completions", json=request).json()["error"]["param"] == "forerun.session"
    assert server.ask("POST", at("first") + "/fork", json={"id": id}).json()["error"]["param"] == "id"
    assert server.ask("POST", f"{SESSIONS}/import", params={"id": id}, content=b"", headers=TAR).json()["error"]["param"] == "id"


def test_web_pages_are_not_allowed(server: Server) -> None:
    request = httpx.options(server.url + SESSIONS, headers={"origin": "http://x"})
    assert "access-control-allow-origin" not in request.headers


def test_the_commands_use_the_server_that_holds_the_folder(server: Server, forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_API_KEY", "key-a")
    server.ask("DELETE", SESSIONS)
    server.talk("by hand", "to be looked after")
    server.written("by hand")
    assert "by hand" in [each["id"] for each in json.loads(forerun("bank", "ls", "--bank-dir", server.folder, "--json").out)["sessions"]]
    assert forerun("bank", "pin", "by hand", "--bank-dir", server.folder).out == "by hand is pinned\n"
    assert forerun("bank", "name", "by hand", "a name", "--bank-dir", server.folder).code == 0
    shown = json.loads(forerun("bank", "show", "a name", "--bank-dir", server.folder, "--json").out)
    assert (shown["pinned"], shown["tenant"], shown["ram_bytes"] > 0, len(shown["snapshots"]) > 0) == (True, "ann", True, True)
    file = server.folder.with_name("by hand.tar")
    assert forerun("bank", "export", "a name", file, "--state", "--bank-dir", server.folder).code == 0
    assert "name a file that does not exist" in forerun("bank", "export", "a name", file, "--bank-dir", server.folder).err
    assert file.stat().st_mode & 0o777 == 0o600
    printed = forerun("bank", "import", file, "again", "--bank-dir", server.folder).out
    assert printed == "again (a name) is stored; with its state\n"
    server.ask("DELETE", at("again"))
    assert forerun("bank", "rm", "a name", "--bank-dir", server.folder, "--yes").code == 0
    assert "by hand" not in server.sessions()
    server.talk("to go", "all of it")
    assert forerun("bank", "fork", "to go", "too", "--bank-dir", server.folder).out == "too continues to go from here\n"
    assert "2 conversations removed" in forerun("bank", "wipe", "--bank-dir", server.folder, "--yes").out
    assert server.sessions() == {}
    server.talk("one", "of several")
    assert run(RemoteSessions(server.url, "key-a").one("", "one")).tenant == "ann"
    monkeypatch.setenv("FORERUN_API_KEY", "wrong")
    assert "does not know the API key that was sent" in forerun("bank", "ls", "--bank-dir", server.folder).err

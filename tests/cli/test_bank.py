"""`forerun bank` on a folder of real records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.records import IDENTITY, SECRET, record
from tests.request_log.test_analysis import RAM

from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.cli.conversations import ago, durable, on_disk, unique_ids
from forerun.request_log.entry import Content, decode, encode
from forerun.values import Miss, SessionInfo, SessionState, TextPrompt

Forerun = Callable[..., Any]
SEGMENT = record("segment", tokens=[1, 2, 3], num_bytes=100_000)
SNAPSHOT = record("snapshot", tokens=[1, 2, 3], num_bytes=50_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tier = DiskTier(tmp_path / "bank", limit_bytes=1 << 30, daily_limit_bytes=1 << 62, index=hold(tmp_path / "bank"))
    for each in (SEGMENT, SNAPSHOT):
        tier.put(each)
    tier.index.label(SEGMENT.info.key, RecordLabel("refactor", "", 1e9, 1e9))
    tier.index.label(SNAPSHOT.info.key, RecordLabel("refactor", "", 2e9, 2e9))
    tier.index.note_session(
        Session("", "refactor", "", 2e9, 4, 3, False, (SEGMENT.info.key, SNAPSHOT.info.key), "Fix the parser", "opencode")
    )
    tier.close()
    return tmp_path / "bank"


def damage(folder: Path, key: str) -> None:
    path = folder / "records" / key[:2] / key
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def sessions(forerun: Forerun, folder: Path) -> list[Any]:
    found: list[Any] = json.loads(forerun("bank", "ls", "--bank-dir", folder, "--json").out)["sessions"]
    return found


def test_ls_lists_conversations(forerun: Forerun, folder: Path) -> None:
    ran = forerun("bank", "ls", "--bank-dir", folder)
    header, row, total = ran.out.splitlines()
    assert row.split() == ["refactor", "Fix", "the", "parser", "opencode", "4", "3", "2033-05-18", "all"]
    assert header.split() == ["id", "title", "client", "turns", "tokens", "last", "used", "on", "disk"]
    assert total.startswith("1 conversation, 2 records, ")
    assert [(each["id"], each["stored_tokens"], each["state"]) for each in sessions(forerun, folder)] == [("refactor", 3, "ssd")]


@pytest.mark.parametrize(
    ("passed_s", "text"), [(-5, "now"), (59, "now"), (60, "1 min ago"), (7199, "1 h ago"), (86400, "1 day ago"), (9e5, "10 days ago")]
)
def test_ago(passed_s: float, text: str) -> None:
    assert ago(passed_s) == text


def test_ids_are_whole_on_a_narrow_screen(forerun: Forerun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forerun("bank", "pin", "refactor", "--bank-dir", folder)
    forerun("bank", "fork", "refactor", "a1b2c3d4e5f6", "--name", "what we tried before lunch", "--bank-dir", folder)
    monkeypatch.setenv("COLUMNS", "80")
    shown = forerun("bank", "ls", "--bank-dir", folder).out
    assert "a1b2c3d4e5f6 " in shown
    assert "all, pinned" in shown
    assert "…" not in shown
    assert "quarantined" not in shown


def test_ids_are_cut_to_one_length_unless_two_would_be_the_same() -> None:
    ids = ["0a1b2c3d4e5f60718293", "short", "my-conversation-1", "my-conversation-12", "my-conversation-2", "short"]
    assert unique_ids(ids) == ["0a1b2c3d4e5f", "short", "my-conversation-1", "my-conversation-12", "my-conversation-2", "short"]
    assert unique_ids([]) == []


@pytest.mark.parametrize(
    ("state", "short", "long"),
    [
        ("ssd", "all", "all of it"),
        ("skipped", "25%", "1,000 of 4,000 tokens (why not)"),
        ("writing", "writing", "1,000 of 4,000 tokens, the rest is being written"),
        ("ram", "RAM only", "nothing: the server stores nothing on disk"),
    ],
)
def test_what_is_durable(state: SessionState, short: str, long: str) -> None:
    session = SessionInfo("id", "", "", "", "", 1, 4000, 1000, 0, 0, 1e9, True, state, "why not")
    assert (durable(session), on_disk(session)) == (f"{short}, pinned", long)


def test_show_prints_a_conversation_and_its_snapshots(forerun: Forerun, folder: Path) -> None:
    shown = json.loads(forerun("bank", "show", "ref", "--bank-dir", folder, "--json").out)
    assert (shown["id"], shown["turns"], shown["tokens"], shown["pinned"]) == ("refactor", 4, 3, False)
    assert [(snapshot["key"], snapshot["stop"], "tokens" in snapshot) for snapshot in shown["snapshots"]] == [(SNAPSHOT.info.key, 3, False)]
    lines = forerun("bank", "show", "refactor", "--bank-dir", folder).out.splitlines()
    assert lines[:4] == ["id         refactor", "title      Fix the parser", "client     opencode", "length     4 turns, 3 tokens"]
    assert lines[5:7] == ["on disk    all of it, 158.2 kB", ""]
    assert lines[-1].split()[:4] == [SNAPSHOT.info.key[:12], "3", "50.0", "kB"]


def test_a_name_and_a_pin(forerun: Forerun, folder: Path) -> None:
    assert forerun("bank", "name", "refactor", "the big one", "--bank-dir", folder).out == "refactor is now called 'the big one'\n"
    assert forerun("bank", "pin", "the big one", "--bank-dir", folder).out == "refactor (the big one) is pinned\n"
    assert "all, pinned" in forerun("bank", "ls", "--bank-dir", folder).out
    assert json.loads(forerun("bank", "prune", "--bank-dir", folder, "--to-bytes", "0", "--json").out)["removed"] == 0
    assert forerun("bank", "unpin", "refactor", "--bank-dir", folder).out == "refactor (the big one) is not pinned\n"
    assert (sessions(forerun, folder)[0]["pinned"], sessions(forerun, folder)[0]["name"]) == (False, "the big one")


def test_changes_as_json(forerun: Forerun, folder: Path, tmp_path: Path) -> None:
    index = hold(folder)
    index.note_identity(SEGMENT.info.root, "", IDENTITY.fields, 1.0)
    index.close()
    (folder / "secret").write_bytes(SECRET)

    def printed(*arguments: object) -> Any:
        return json.loads(forerun("bank", *arguments, "--bank-dir", folder, "--json").out)

    assert printed("name", "refactor", "big")["name"] == "big"
    assert [printed(verb, "big")["pinned"] for verb in ("pin", "unpin")] == [True, False]
    assert printed("export", "big", tmp_path / "x.tar") == {"file": str(tmp_path / "x.tar"), "bytes": (tmp_path / "x.tar").stat().st_size}
    assert printed("rm", "big", "--yes") == {"removed": "refactor"}
    assert printed("wipe", "--yes") == {"removed": 0}


def test_rm_asks_first(forerun: Forerun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--yes" in forerun("bank", "rm", "refactor", "--bank-dir", folder).err
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: questions.append(question) or False)
    assert forerun("bank", "rm", "refactor", "--bank-dir", folder).code == 1
    assert questions == ["Remove refactor (4 turns, 3 tokens)?"]
    assert len(sessions(forerun, folder)) == 1
    assert forerun("bank", "rm", "refactor", "--bank-dir", folder, "--yes").out == "refactor is removed\n"
    assert sessions(forerun, folder) == []
    assert list((folder / "records").rglob("*/*")) == []


def test_a_fork_and_a_wipe(forerun: Forerun, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("FORERUN_REQUEST_LOG", str(log))
    log.write_text(f"{encode(replace(RAM[0], content=Content(TextPrompt('a secret'), 'another')))}\n")
    assert forerun("bank", "fork", "refactor", "..", "--bank-dir", folder).code == 2
    forked = forerun("bank", "fork", "refactor", "a1", "--name", "second", "--bank-dir", folder).out
    assert forked == "a1 (second) continues refactor from here\n"
    forerun("bank", "name", "refactor", "second", "--bank-dir", folder)
    assert "2 conversations match 'second': refactor, a1\n" in forerun("bank", "show", "second", "--bank-dir", folder).err
    assert forerun("bank", "rm", "refactor", "--bank-dir", folder, "--yes").code == 0
    assert [(each["name"], each["state"]) for each in sessions(forerun, folder)] == [("second", "ssd")]
    assert "a secret" in log.read_text()
    assert "--yes" in forerun("bank", "wipe", "--bank-dir", folder).err
    assert forerun("bank", "wipe", "--bank-dir", folder, "--yes").out == "1 conversation removed\n"
    assert sessions(forerun, folder) == list((folder / "records").rglob("*/*")) == []
    assert decode(log.read_text()).content is None


def test_export_and_import(forerun: Forerun, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = hold(folder)
    index.note_identity(SEGMENT.info.root, "", IDENTITY.fields, 1.0)
    index.close()
    (folder / "secret").write_bytes(SECRET)
    key, plain, whole = tmp_path / "key", tmp_path / "plain.tar", tmp_path / "whole.tar"
    key.write_text("0123456789abcdef\n")
    assert forerun("bank", "export", "refactor", plain, "--bank-dir", folder).code == 0
    assert "state goes into signed archives only" in forerun("bank", "export", "refactor", whole, "--state", "--bank-dir", folder).err
    assert not whole.exists()
    monkeypatch.setenv("FORERUN_ARCHIVE_KEY_FILE", str(key))
    assert forerun("bank", "export", "refactor", whole, "--state", "--bank-dir", folder).code == 0
    for file, args, printed in ((plain, ["new"], "it holds no state"), (whole, [], "there is a conversation 'refactor' already")):
        assert printed in forerun("bank", "import", file, *args, "--bank-dir", folder).err
    assert forerun("bank", "import", whole, "new", "--bank-dir", folder).out == "new is stored; with its state\n"
    assert [each["state"] for each in sessions(forerun, folder)] == ["ssd", "ssd"]
    assert forerun("bank", "verify", "--bank-dir", folder).code == 0
    key.write_text("another key of 16 bytes")
    assert "not signed by the key" in forerun("bank", "import", whole, "third", "--bank-dir", folder).err
    key.write_text("short")
    assert forerun("bank", "import", whole, "third", "--bank-dir", folder).code == 2


def test_an_import_keeps_to_the_quota(forerun: Forerun, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = hold(folder)
    index.note_identity(SEGMENT.info.root, "", IDENTITY.fields, 1.0)
    index.close()
    (folder / "secret").write_bytes(SECRET)
    key, archive = tmp_path / "key", tmp_path / "whole.tar"
    key.write_text("0123456789abcdef\n")
    monkeypatch.setenv("FORERUN_ARCHIVE_KEY_FILE", str(key))
    assert forerun("bank", "export", "refactor", archive, "--state", "--bank-dir", folder).code == 0
    assert forerun("bank", "rm", "refactor", "--yes", "--bank-dir", folder).code == 0
    with monkeypatch.context() as small:
        small.setenv("FORERUN_BANK_DISK_BYTES", "1MiB")
        assert "raise --bank-disk-bytes" in forerun("bank", "import", archive, "--bank-dir", folder).err
    assert sessions(forerun, folder) == []
    assert forerun("bank", "import", archive, "--bank-dir", folder).code == 0


def test_a_conversation_must_be_one(forerun: Forerun, folder: Path) -> None:
    tier = DiskTier.view(folder)
    (session,) = tier.index.all_sessions()
    tier.close()
    index = hold(folder)
    index.note_session(replace(session, tenant="bob"))
    index.close()
    assert "2 conversations match 'refactor': /refactor, bob/refactor" in forerun("bank", "show", "refactor", "--bank-dir", folder).err
    assert json.loads(forerun("bank", "show", "bob/refactor", "--bank-dir", folder, "--json").out)["tenant"] == "bob"
    assert "bob" in forerun("bank", "ls", "--bank-dir", folder).out
    assert "there is no conversation 'other'" in forerun("bank", "show", "other", "--bank-dir", folder).err


def test_verify_finds_the_damaged_record(forerun: Forerun, folder: Path) -> None:
    ran = forerun("bank", "verify", "--bank-dir", folder)
    assert (ran.code, ran.out) == (0, "2 records read, 0 damaged\n")
    damage(folder, SNAPSHOT.info.key)
    ran = forerun("bank", "verify", "--bank-dir", folder, "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["records"], len(found["damaged"])) == (1, 2, 1)
    assert "quarantines damaged records by itself" in forerun("bank", "verify", "--bank-dir", folder).out
    assert SNAPSHOT.info.key in found["damaged"][0]
    assert "checksum" in found["damaged"][0]


def test_verify_finds_a_damaged_index(forerun: Forerun, folder: Path) -> None:
    content = bytearray((folder / "index.db").read_bytes())
    content[content.rfind(SNAPSHOT.info.key.encode())] ^= 1  # the key is in the row and in its index
    (folder / "index.db").write_bytes(content)
    ran = forerun("bank", "verify", "--bank-dir", folder)
    assert ran.code == 1
    assert f"{folder / 'index.db'}: row 2 missing from index" in ran.out


def test_reading_changes_nothing_even_if_a_record_is_damaged(forerun: Forerun, folder: Path) -> None:
    damage(folder, SNAPSHOT.info.key)
    before = sorted((folder / "records").rglob("*"))
    for command in ("ls", "verify"):
        forerun("bank", command, "--bank-dir", folder)
    assert sorted((folder / "records").rglob("*")) == before
    assert list((folder / "quarantine").iterdir()) == []


def test_prune_removes_the_least_recently_used(forerun: Forerun, folder: Path) -> None:
    pruned = json.loads(forerun("bank", "prune", "--bank-dir", folder, "--to-bytes", "220kB", "--json").out)
    assert pruned["removed"] == 1
    assert pruned["bytes"] <= 220_000
    assert list((folder / "records").rglob(SNAPSHOT.info.key)) != []
    assert "1 record removed" in forerun("bank", "prune", "--bank-dir", folder, "--to-bytes", "0").out


def test_explain_shows_what_was_missed_and_where(forerun: Forerun, tmp_path: Path) -> None:
    missed = Miss("differs", 40, "message 1 (user)", "content", "green", "red")
    report = replace(RAM[0].report, reason="the nearest stored conversation diverges after 40 tokens", miss=missed)
    log = tmp_path / "requests.jsonl"
    log.write_text(f"{encode(replace(RAM[0], id='chatcmpl-1', report=report))}\n{encode(replace(RAM[1], id='chatcmpl-2'))}\n")
    lines = forerun("bank", "explain", "chatcmpl-1", "--log", log).out.splitlines()
    assert lines[1:] == [
        "the nearest stored conversation diverges after 40 tokens",
        "the first token that differs is number 40, in content of message 1 (user)",
        "  prompt  'green'",
        "  stored  'red'",
    ]
    for word in ("1", "chatcmpl-1"):
        assert forerun("bank", "explain", word, "--log", log).out.splitlines() == lines
    printed = json.loads(forerun("bank", "explain", "chatcmpl-1", "--log", log, "--json").out)
    assert (printed["id"], printed["miss"]["where"]) == ("chatcmpl-1", "message 1 (user)")
    assert "that is all that is stored" in forerun("bank", "explain", "chatcmpl-2", "--log", log).out
    log.write_text(
        log.read_text() + encode(replace(RAM[0], id="chatcmpl-3", outcome="error", error="NumericsError: no numbers", report=None))
    )
    printed = {
        "chatcmpl": "3 requests in {} begin with 'chatcmpl'",
        "o": "no request in {} begins with 'o'",
        "chatcmpl-3": "chatcmpl-3 produced no token: Num",
    }
    for request, words in printed.items():
        ran = forerun("bank", "explain", request, "--log", log)
        assert (ran.code, ran.err.startswith(f"forerun: {words.format(log)}")) == (1, True)


def test_while_a_server_runs(forerun: Forerun, folder: Path) -> None:
    held = hold(folder)
    try:
        assert forerun("bank", "verify", "--bank-dir", folder).code == 0
        assert "its server does not answer yet" in forerun("bank", "ls", "--bank-dir", folder).err
        ran = forerun("bank", "prune", "--bank-dir", folder, "--to-bytes", "0")
    finally:
        held.close()
    assert ran.code == 1
    assert "belongs to another running server" in ran.err
    assert "\nhint: stop that server first" in ran.err


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("show", "ab"), ("rm", "ab"), ("prune", "--to-bytes", "0")])
def test_no_folder(forerun: Forerun, tmp_path: Path, command: tuple[str, ...]) -> None:
    ran = forerun("bank", *command, "--bank-dir", tmp_path / "none")
    assert ran.code == 1
    assert str(tmp_path / "none") in ran.err
    assert "\nhint: name the folder with --bank-dir" in ran.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("show", "ab"), ("rm", "ab"), ("prune", "--to-bytes", "0")])
def test_an_empty_folder_stays_empty(forerun: Forerun, tmp_path: Path, command: tuple[str, ...]) -> None:
    ran = forerun("bank", *command, "--bank-dir", tmp_path)
    assert ran.code == 1
    assert "\nhint: name the folder with --bank-dir" in ran.err
    assert list(tmp_path.iterdir()) == []

"""Conversations in archives: an export can be imported, with state only if it is signed; nothing in an archive is trusted unchecked."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.records import bytes_under
from tests.running import differing_state, read
from tests.talking import IDENTITY
from tests.waiting import LIMIT_S

from forerun.bank import stored, transfer
from forerun.bank.archive import MANIFEST, MOST_MANIFEST_BYTES, TOKENS, Archive
from forerun.bank.bank import Bank
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.bank.transfer import pack
from forerun.errors import BadRequestError, BankFullError, UnknownSessionError
from forerun.state.record import SEGMENT_TOKENS, token_bytes

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
KEY, OTHER_KEY = b"k" * 16, b"o" * 16
PROMPT = [*tiny.words("system", 30), tiny.END, *tiny.words("question", SEGMENT_TOKENS)]
Member = tuple[str, bytes]


def packed(bank: Bank, key: bytes = KEY, *, with_state: bool = True, tenant: str = "", id: str = "mine") -> bytes:
    disk, session = bank.sessions.written(tenant, id)
    return b"".join(pack(disk, session, key, with_state=with_state))


@pytest.fixture(scope="module")
def exported_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], bytes]:
    """What is stored of a conversation, and its signed archive with state."""
    with closing(opened(tmp_path_factory.mktemp("bank") / "bank")) as bank:
        stored = turn(bank, PROMPT, session="mine").stored
        stored = turn(bank, stored + tiny.words(2, 30), session="mine").stored
        bank.sessions.update("", "mine", name="a walk", is_pinned=True)
        return stored, packed(bank)


@pytest.fixture
def archive(exported_session: tuple[list[int], bytes]) -> bytes:
    return exported_session[1]


def members(archive: bytes) -> list[Member]:
    """An archive's members, as any tar reads them."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return [(each.name, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr]


def tar_of(found: list[Member]) -> bytes:
    """A tar of these members, as any tar writes them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in found:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return stream.getvalue()


def manifest_with(archive: bytes, **changed: Any) -> bytes:
    (_, manifest), *rest = members(archive)
    return tar_of([(MANIFEST, json.dumps(json.loads(manifest) | changed).encode()), *rest])


def imported(folder: Path, archive: bytes, *, tenant: str = "bob") -> Bank:
    bank = opened(folder)
    bank.sessions.take(tenant, "theirs", Archive.read(io.BytesIO(archive)), lambda: None)
    return bank


def test_a_conversation_continues_in_another_bank_bit_for_bit(exported_session: tuple[list[int], bytes], tmp_path: Path) -> None:
    stored, archive = exported_session
    with closing(imported(tmp_path / "bank", archive)) as bank:
        info = bank.sessions.one("bob", "theirs")
        assert (info.name, info.turns, info.tokens, info.state, info.pinned) == ("a walk", 2, len(stored), "ssd", False)
        after = turn(bank, stored + tiny.words(3, 20), tenant="bob", session="theirs")
        assert (after.restored.source, after.restored.reused_tokens) == ("ssd", len(stored))
        assert differing_state(after.restored.cache, read(FAMILY, tuple(after.stored))) == []
        assert turn(bank, stored, tenant="ann").restored.source == "cold"
        with pytest.raises(BadRequestError, match="there is a conversation 'theirs'"):
            bank.sessions.take("bob", "theirs", Archive.read(io.BytesIO(archive)), lambda: None)


def test_an_archive_is_a_tar_that_people_can_read(exported_session: tuple[list[int], bytes]) -> None:
    stored, archive = exported_session
    (first, manifest), (second, tokens), *records = members(archive)
    assert (first, second, [name for name, _ in records]) == (MANIFEST, TOKENS, [f"records/{number}" for number in range(len(records))])
    assert tokens == token_bytes(stored)
    assert json.loads(manifest)["identity"] == IDENTITY.fields
    assert members(archive) == members(tar_of(members(archive)))


def test_without_a_key_no_state_goes_out(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        stored = turn(bank, PROMPT, session="mine").stored
        with pytest.raises(BadRequestError, match="state goes into signed archives only"):
            packed(bank, b"")
        found = Archive.read(io.BytesIO(packed(bank, b"", with_state=False)))
        assert (found.tokens, found.manifest.parts, found.manifest.signature) == (tuple(stored), (), "")


def test_only_the_conversation_itself_goes_out(tmp_path: Path) -> None:
    """The longer end of another conversation, which holds this one's, too, is none of its business."""
    with closing(opened(tmp_path / "bank")) as bank:
        mine = turn(bank, PROMPT, session="mine").stored
        theirs = turn(bank, mine + tiny.words("private", 40), session="theirs").stored
        assert bank.flush(LIMIT_S)
        assert token_bytes(theirs[len(mine) + 2 : len(mine) + 30]) not in packed(bank)


def full(folder: Path, *, is_pinned: bool) -> Bank:
    """A bank whose disk holds no more unless something is evicted."""
    bank = opened(folder)
    for number in range(6):
        turn(bank, tiny.words(f"other {number}", 2 * SEGMENT_TOKENS), session=str(number))
        bank.sessions.update("", str(number), name=None, is_pinned=is_pinned)
    bank._disk.limit_bytes = bank._disk.num_bytes + INDEX_SLACK_BYTES  # type: ignore[union-attr]
    return bank


def test_an_import_evicts_what_it_needs(exported_session: tuple[list[int], bytes], tmp_path: Path) -> None:
    stored, archive = exported_session
    with closing(full(tmp_path / "bank", is_pinned=False)) as bank:
        made = bank.sessions.take("", "theirs", Archive.read(io.BytesIO(archive)), lambda: None)
        assert (made.state, made.stored_tokens) == ("ssd", len(stored))
        assert bank._disk.num_bytes == bytes_under(tmp_path / "bank") <= bank._disk.limit_bytes  # type: ignore[union-attr]


def test_an_import_that_does_not_fit_next_to_pins_is_refused_and_leaves_nothing(archive: bytes, tmp_path: Path) -> None:
    with closing(full(tmp_path / "bank", is_pinned=True)) as bank:
        with pytest.raises(BankFullError, match="pinned conversations take"):
            bank.sessions.take("", "theirs", Archive.read(io.BytesIO(archive)), lambda: None)
        assert "theirs" not in {session.id for session in bank.sessions.all("", 10)}
        assert bank._disk.num_bytes == bytes_under(tmp_path / "bank")  # type: ignore[union-attr]


@pytest.mark.parametrize("num_read", [0, 3])
def test_what_is_removed_while_it_goes_out_is_not_there(num_read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        turn(bank, PROMPT, session="mine")
        disk, session = bank.sessions.written("", "mine")
        prefix, exported = stored.usable(disk.index, session), pack(disk, session, KEY, with_state=True)
        for _ in range(num_read):
            next(exported)
        bank.sessions.remove("", "mine")
        with pytest.raises(UnknownSessionError):
            list(exported)
        monkeypatch.setattr(transfer, "usable", lambda index, session: prefix)  # as it was a moment ago
        monkeypatch.setattr(disk.index, "identity", lambda root: IDENTITY.fields)
        monkeypatch.setattr(disk.index, "find", lambda keys: {info.key: info for info in prefix.infos})
        with pytest.raises(UnknownSessionError):
            pack(disk, session, KEY, with_state=True)


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [
        (KEY, {}, ""),
        (b"", {}, "it is not signed"),
        (OTHER_KEY, {}, "it is not signed"),
        (KEY, {"name": "other"}, "it is not signed"),
        (KEY, {"signature": ""}, "it is not signed"),
        (KEY, {"parts": []}, "it holds no state"),
        (KEY, {"identity": IDENTITY.fields | {"weights": "other"}}, "it is not signed"),
    ],
)
def test_state_is_taken_only_if_it_is_signed(archive: bytes, key: bytes, change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    found = Archive.read(io.BytesIO(manifest_with(archive, **change)))
    with closing(opened(tmp_path / "bank")) as bank:
        assert bank.sessions.refusal(found, key).startswith(reason)
        assert (bank.sessions.refusal(found, key) == "") == (reason == "")


def test_state_of_another_model_is_not_taken(archive: bytes, tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank", identity=replace(IDENTITY, weights="other", template="x"))) as bank:
        assert bank.sessions.refusal(Archive.read(io.BytesIO(archive)), KEY) == "its state is of another model: weights and template differ"


def cut(archive: bytes) -> bytes:
    return archive[:-2000]


def spoilt(archive: bytes) -> bytes:
    """A bit of a record, under the true manifest."""
    return archive[:-1500] + bytes([archive[-1500] ^ 1]) + archive[-1499:]


def named(name: str) -> Callable[[bytes], bytes]:
    return lambda archive: tar_of([(MANIFEST, members(archive)[0][1]), (name, members(archive)[1][1]), *members(archive)[2:]])


def linked(kind: bytes) -> Callable[[bytes], bytes]:
    """The tokens are a link, a device, a sparse file, or an extension's header."""

    def change(archive: bytes) -> bytes:
        found, header = members(archive), tarfile.TarInfo(TOKENS)
        header.type, header.linkname = kind, "../../secret"
        return plain(found[0]) + header.tobuf(tarfile.GNU_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)

    return change


def plain(member: Member) -> bytes:
    name, content = member
    header = tarfile.TarInfo(name)
    header.size = len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def huge(name: str, num_bytes: int) -> Callable[[bytes], bytes]:
    """A member whose header claims a huge size, without data."""

    def change(archive: bytes) -> bytes:
        header = tarfile.TarInfo(name)
        header.size = num_bytes
        before = [] if name == MANIFEST else members(archive)[: 1 if name == TOKENS else 2]
        return b"".join(map(plain, before)) + header.tobuf(tarfile.GNU_FORMAT)

    return change


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda archive: b"",
    "no tar": lambda archive: b"no tar" * 1000,
    "cut": cut,
    "spoilt": spoilt,
    "above": named("../tokens"),
    "absolute": named("/etc/passwd"),
    "odd": named("./tokens"),
    "twice": lambda archive: tar_of([members(archive)[0], *members(archive)]),
    "more": lambda archive: tar_of([*members(archive), ("records/9", b"x")]),
    "fewer": lambda archive: tar_of(members(archive)[:-1]),
    "other order": lambda archive: tar_of([*members(archive)[:2], *members(archive)[:1:-1]]),
    "state of another length": lambda archive: manifest_with(archive, snapshots=json.loads(members(archive)[0][1])["snapshots"][:-1]),
    "a symbolic link": linked(tarfile.SYMTYPE),
    "a hard link": linked(tarfile.LNKTYPE),
    "a device": linked(tarfile.CHRTYPE),
    "a sparse file": linked(tarfile.GNUTYPE_SPARSE),
    "a long name": linked(tarfile.GNUTYPE_LONGNAME),
    "an extension": linked(tarfile.XHDTYPE),
    "a huge manifest": huge(MANIFEST, MOST_MANIFEST_BYTES + 1),
    "huge tokens": huge(TOKENS, 1 << 60),
    "a huge record": huge("records/0", 1 << 60),
    "a negative size": huge(TOKENS, -1),
    "other tokens": lambda archive: tar_of([members(archive)[0], (TOKENS, members(archive)[1][1][::-1]), *members(archive)[2:]]),
    "a field of the wrong type": lambda archive: manifest_with(archive, num_tokens="3"),
    "dots for an id": lambda archive: manifest_with(archive, id=".."),
    "an unknown field": lambda archive: manifest_with(archive, path="/etc"),
    "another format": lambda archive: manifest_with(archive, format="forerun session 1"),
    "a snapshot beyond the end": lambda archive: manifest_with(archive, snapshots=[1 << 20]),
    "snapshots in no order": lambda archive: manifest_with(archive, snapshots=[5, 5]),
    "no snapshots": lambda archive: manifest_with(archive, snapshots=[]),
    "too many parts": lambda archive: manifest_with(archive, parts=[{"num_bytes": 0, "sha256": "0" * 64}] * 20_000),
    "a part too large": lambda archive: manifest_with(archive, parts=[{"num_bytes": 1 << 50, "sha256": "0" * 64}]),
    "a part that is missing": lambda archive: manifest_with(archive, parts=json.loads(members(archive)[0][1])["parts"][:2]),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_is_no_archive_is_refused_and_leaves_nothing(archive: bytes, change: str, tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    with closing(opened(folder)) as bank:
        with pytest.raises(BadRequestError):
            bank.sessions.take("", "theirs", Archive.read(io.BytesIO(REFUSED[change](archive))), lambda: None)
        assert bank.sessions.all("", 10) == []
        assert bank._disk.index.inventory() == []  # type: ignore[union-attr]
        assert bank._disk.num_bytes == bytes_under(folder)  # type: ignore[union-attr]
    assert {path.name for path in tmp_path.iterdir()} == {"bank"}


def test_the_payloads_match_the_digests_of_the_manifest(archive: bytes) -> None:
    manifest, data = json.loads(members(archive)[0][1]), members(archive)[2:]
    assert [part["sha256"] for part in manifest["parts"]] == [sha256(content).hexdigest() for _, content in data]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_changed_byte_is_believed(exported_session: tuple[list[int], bytes], data: st.DataObject) -> None:
    """Whatever is changed in the archive, only what was signed is imported."""
    stored, archive = exported_session
    at, bit = data.draw(st.integers(0, 6000) | st.integers(0, len(archive) - 1)), data.draw(st.integers(0, 7))
    changed = archive[:at] + bytes([archive[at] ^ (1 << bit)]) + archive[at + 1 :]
    try:
        found = Archive.read(io.BytesIO(changed))
        payloads = [bytes(payload) for payload in found.payloads()]
    except BadRequestError:
        return
    if found.manifest.is_signed_by(KEY):
        assert (list(found.tokens), payloads) == (stored, [content for _, content in members(archive)[2:]])

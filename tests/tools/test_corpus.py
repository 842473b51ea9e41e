"""The generator of the training conversations: deterministic, and every conversation as a chat template expects it."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

from agent import Session
from documents import MODEL_FOLDER, Conversation, code_conversations, documents_of, folders_of, manual_conversations, small_chats
from exercises import exercise
from facts import SourceFile, read_source
from messages import TOOLS
from sources import Source, chance, is_acceptable, manifest, texts_of
from tokens import ADDED_TOKENS, VOCAB, pack

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tools" / "demo_model"
OWN = Source(dir="demo_model", name="demo_model", version="1", licence="Apache-2.0", kind="code")


@pytest.fixture(scope="module")
def files() -> list[SourceFile]:
    """The recipe's own sources."""
    return [read_source(f"demo_model/{path.name}", path.read_text()) for path in sorted(RECIPE.glob("*.py"))]


@pytest.fixture(scope="module")
def conversations(files: list[SourceFile]) -> list[Conversation]:
    folders = folders_of(file.path for file in files)
    return [made for seed in range(8) for file in files for made in code_conversations(Random(seed), "demo_model", file, folders)]


def test_the_same_sources_give_the_same_documents() -> None:
    first = documents_of(OWN, ROOT / "tools")
    assert first == documents_of(OWN, ROOT / "tools")
    assert first.base
    assert first.chat
    assert first.long
    assert small_chats(5) == small_chats(7)[:5]


def test_roles_follow_each_other(conversations: list[Conversation]) -> None:
    after = {"start": {"system", "user"}, "system": {"user"}, "user": {"assistant"}, "assistant": {"user", "tool"}, "tool": {"assistant"}}
    for conversation in conversations:
        roles = ["start", *(message["role"] for message in conversation["messages"])]
        assert all(role in after[before] for before, role in pairwise(roles)), roles
        assert roles[-1] == "assistant"


def test_every_call_is_answered_and_fits_its_declaration(conversations: list[Conversation]) -> None:
    called = Counter[str]()
    for conversation in conversations:
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.get("tools", [])}
        turns = conversation["messages"]
        for turn, answer in pairwise(turns):
            assert (answer["role"] == "tool") == ("tool_calls" in turn)
            for call in turn.get("tool_calls", []):
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                assert set(declared[name]["required"]) <= arguments.keys() <= declared[name]["properties"].keys()
                called[name] += 1
    assert called.keys() == TOOLS.keys() - {"write_file"}


def test_an_agent_reads_and_edits_what_is_in_the_files(files: list[SourceFile]) -> None:
    """Results of `read_file` are the files' texts, and edits replace text that exists."""
    session = Session(Random(0), folders_of(file.path for file in files))
    texts = {file.path: file.text for file in files}
    for file in files:
        session.work_on(file, 30)
    calls = {"read_file": 0, "edit_file": 0, "grep": 0}
    for turn, answer in pairwise(session.messages):
        for call in turn.get("tool_calls", []):
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            calls[name] = calls.get(name, 0) + 1
            if name == "read_file":
                assert answer["content"] == texts[arguments["path"]].rstrip()
            elif name == "edit_file":
                assert arguments["old_text"] in texts[arguments["path"]]
            elif name == "grep":
                path, line, text = answer["content"].split(":", 2)
                assert texts[path].split("\n")[int(line) - 1] == text
    assert calls["read_file"] == len(files)
    assert min(calls["edit_file"], calls["grep"]) > 10


def test_exercises_are_answered_right() -> None:
    rng = Random(1)
    sums = [made.answer for made in (exercise(rng) for _ in range(500)) if re.fullmatch(r"\d+ [+-] \d+ = -?\d+", made.answer)]
    assert len(sums) > 20
    for text in sums:
        a, sign, b, _, total = text.split()
        assert int(total) == int(a) + (int(b) if sign == "+" else -int(b))


def test_a_manual_becomes_questions() -> None:
    paragraph = "The :class:`~shop.Basket` holds ``items`` until they are paid for, which may take its time, as all good things do."
    text = f"Filling the basket\n==================\n\n{paragraph}\n\n.. note:: hidden\n"
    (made,) = manual_conversations(Random(0), text)
    assert "Filling the basket" in made["messages"][0]["content"]
    assert made["messages"][1]["content"].startswith("The `shop.Basket` holds `items` until")


def test_which_files_of_a_source_are_taken(tmp_path: Path) -> None:
    plain = "a = 1  # a line of code\n" * 20
    contents = {
        "a.py": plain,
        "copy.py": plain,
        "short.py": "a = 1",
        "data.py": f"b = {list(range(100))}",
        "_vendor/c.py": plain + "c",
        "d.txt": plain,
    }
    for name, text in contents.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(text)
    (tmp_path / "source" / "latin.py").write_bytes(plain.encode() + b"\xe9")
    source = Source(dir="source", name="source", version="1", licence="MIT", kind="heldout", tests=1.0)
    assert list(texts_of(source, tmp_path)) == [("a.py", plain)]


@pytest.mark.parametrize(
    ("text", "is_prose", "expected"),
    [
        ("word " * 100, True, True),
        ("word " * 100, False, False),  # one long line
        ("word\n" * 100, False, True),
        ("word\n" * 10, False, False),  # too short
        ("12345 \n" * 100, False, False),  # a table
        ("wörd \n" * 100, False, False),  # not plain
        ("word <| \n" * 100, False, False),  # could hold a control token
    ],
)
def test_which_text_is_acceptable(text: str, is_prose: bool, expected: bool) -> None:
    assert is_acceptable(text, is_prose=is_prose) is expected


def test_the_manifest_names_version_licence_and_share_of_every_source() -> None:
    sources = manifest(RECIPE / "sources.json")
    assert len({source.name for source in sources}) == len({source.dir for source in sources}) == len(sources) == 49
    assert all(source.version and source.licence and 0 < source.keep <= 1 and 0 < source.tests <= 1 for source in sources)
    assert Counter(source.kind for source in sources) == {"code": 43, "heldout": 3, "prose": 3}


def test_chance_is_even_and_fixed() -> None:
    assert chance("a") == chance("a") != chance("b")
    assert 0.45 < sum(chance(str(i)) < 0.5 for i in range(1000)) / 1000 < 0.55


def test_a_stream_holds_every_document_followed_by_an_end_token() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    end = tokenizer.token_to_id(ADDED_TOKENS[0])
    documents = small_chats(600)
    ids = pack(tokenizer, list(documents)).tolist()
    assert max(ids) < VOCAB
    assert ids[-1] == end
    assert ids.count(end) == len(documents)
    parts = tokenizer.decode(ids, skip_special_tokens=False).split(ADDED_TOKENS[0])
    assert sorted(parts) == sorted([*documents, ""])

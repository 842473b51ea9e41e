"""The recorded conversation: contents of the package's files, cut to size; every request ends at a user message."""

from __future__ import annotations

import json
from collections import deque

import pytest

from forerun.cli.demo import MODEL
from forerun.demo.conversation import FULL, SMALL, Conversation, Scale, cut, package_sources, read, record, search
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

SOURCES = {"a.py": "alpha beta\ngamma raise delta\n", "b.py": "x = 1\nraise y\n", "c.py": "bank\n"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


def prompt_tokens(conversation: Conversation, scale: Scale, tokenizer: Tokenizer) -> list[int]:
    """Tokens of each of the five requests, if every answer has its maximal length."""
    prompter = Prompter(tokenizer, Template.load(MODEL))
    messages, counts = conversation.opening, list[int]()
    for continuation in (*conversation.continuations, ()):
        chat = Chat(messages, conversation.tools, {"enable_thinking": False})
        counts.append(len(prompter.encode(chat, tenant="").tokens))
        messages = (*messages, {"role": "assistant", "content": " x" * scale.answer_tokens}, *continuation)
    return counts


def test_small_stays_below_its_limit(tokenizer: Tokenizer) -> None:
    counts = prompt_tokens(record(package_sources(), SMALL, lambda text: len(tokenizer.encode(text, tenant=""))), SMALL, tokenizer)
    assert len(counts) == 5
    assert sum(counts) + counts[-1] < 6000  # each prompt past the bank, and the longest once in pieces


def test_full_grows_to_its_length(tokenizer: Tokenizer) -> None:
    counts = prompt_tokens(record(package_sources(), FULL, lambda text: len(tokenizer.encode(text, tenant=""))), FULL, tokenizer)
    assert 20_000 < counts[-1] < 25_000


def test_requests_end_at_a_user_message() -> None:
    conversation = record(SOURCES, SMALL, len)
    assert len(conversation.continuations) == 4
    assert len(conversation.tools) == 5
    for messages in (conversation.opening, *conversation.continuations):
        assert messages[-1]["role"] == "user"


def test_every_call_has_a_result_from_the_sources() -> None:
    conversation = record(SOURCES, Scale("whole", 1000, 1000, 8), len)
    messages = [message for part in (conversation.opening, *conversation.continuations) for message in part]
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls", ())}
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    assert calls.keys() == results.keys()
    read_paths = [json.loads(call["arguments"])["path"] for call in calls.values() if call["name"] == "read_file"]
    assert read_paths == ["a.py", "b.py", "c.py"]
    assert [results[name] for name, call in calls.items() if call["name"] == "read_file"] == list(SOURCES.values())


def test_reading_stops_in_the_file_that_no_longer_fits() -> None:
    queue = deque(SOURCES.items())
    calls = list(read(queue, len(SOURCES["a.py"]) + len("x = "), len))
    assert [call.result for call in calls] == [SOURCES["a.py"], "x ="]
    assert [path for path, _ in queue] == ["c.py"]


def test_search_finds_lines_of_all_files() -> None:
    assert search(SOURCES, "raise ", 1000, len).result == "a.py:2: gamma raise delta\nb.py:2: raise y"


@pytest.mark.parametrize(("limit", "expected"), [(0, ""), (4, ""), (5, "alpha"), (10, "alpha"), (11, "alpha beta ")])
def test_cut_at_words(limit: int, expected: str) -> None:
    assert cut("alpha beta ", limit, len) == (expected, len(expected))


def test_sources_are_the_packages_own() -> None:
    sources = package_sources()
    assert next(iter(sources)).count("/") == 0
    assert "class Record" in sources["state/record.py"]

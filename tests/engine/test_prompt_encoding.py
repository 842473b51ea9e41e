"""What a client sends back after a restart resumes from the sampled tokens, if it still means the same."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import events, running
from tests.engine.turns import Messages, take_turn, turn
from tests.talking import tokenizer
from tests.text.test_answer_memory import CALL, REWRITTEN, THOUGHT, TOOL, TWO, with_arguments

from forerun.bank import writer
from forerun.bank.tier.disk import DiskTier
from forerun.models.load import DEMO_MODEL
from forerun.state.record import SEGMENT_TOKENS
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

USER = {"role": "user", "content": "Write it."}
RESULT = {"role": "tool", "content": "done"}


def canonical(messages: Messages) -> list[int]:
    """The tokens of a prompt without any remembered answer."""
    prompter = Prompter(Tokenizer.load(DEMO_MODEL), Template.load(DEMO_MODEL))
    return list(prompter.encode(Chat(messages, (TOOL,), {}), tenant="").tokens)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.mark.parametrize(
    ("text", "rewrite"),
    [(THOUGHT + CALL, REWRITTEN["escaped"]), (TWO, REWRITTEN["in another order"]), (TWO, REWRITTEN["parsed"])],
    ids=["one, escaped", "two, in another order", "two, parsed"],
)
def test_a_rewritten_call_resumes_from_the_sampled_tokens(folder: Path, text: str, rewrite: Any) -> None:
    first = turn(folder, (USER,), text)
    served = turn(folder, (USER, with_arguments(first.message, rewrite), RESULT))
    assert served.prompt[: len(first.stored)] == first.stored
    assert (served.report.source, served.report.reused_tokens) == ("ssd", len(first.stored))


def test_every_call_of_a_long_conversation_is_reused_at_once(folder: Path) -> None:
    messages: Messages = (USER,)
    for number in range(3):
        served = turn(folder, messages, f"{THOUGHT}{number} {CALL}")
        messages = (*messages, with_arguments(served.message, REWRITTEN["in another order"]), RESULT)
    assert turn(folder, messages).report.reused_tokens == len(served.stored)


def test_calls_are_reused_though_the_next_turn_began_before_they_were_saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, put = threading.Event(), DiskTier.put
    monkeypatch.setattr(writer, "QUEUE_BYTES", 1)
    monkeypatch.setattr(DiskTier, "put", lambda tier, record: (may_write.wait(20), put(tier, record))[1])

    async def scenario() -> Messages:
        messages: Messages = (USER,)
        async with running(folder, forgets=True) as rig:
            for number in range(3):
                served = await take_turn(rig, messages, f"{THOUGHT}{number} {CALL}")
                messages = (*messages, with_arguments(served.message, REWRITTEN["in another order"]), RESULT)
            may_write.set()
        return messages

    served = turn(folder, asyncio.run(scenario()))
    assert (served.report.source, served.report.computed_tokens < 40) == ("ssd", True), served.report.reason


@pytest.mark.parametrize("text", [f"{THOUGHT}\n  Yes  \n", "Hm \n\n\n</think>Yes", f"{THOUGHT}<think> and </think> tag it."])
def test_a_stripped_text_resumes_from_the_sampled_tokens(folder: Path, text: str) -> None:
    first = turn(folder, (USER,), text)
    stripped = {name: value.strip() for name, value in first.message.items()}
    assert turn(folder, (USER, stripped, USER)).report.reused_tokens == len(first.stored)


def test_a_call_that_the_client_edited_stays_edited(folder: Path) -> None:
    first = turn(folder, (USER,), THOUGHT + CALL)
    edited = (USER, with_arguments(first.message, lambda text: text.replace("9000.0", "9001")), RESULT)
    served = turn(folder, edited)
    decode = tokenizer().decode
    assert decode(served.prompt) == decode(canonical(edited))
    assert served.report.reused_tokens < len(first.stored)


def test_a_text_that_the_client_edited_stays_edited_next_to_its_call(folder: Path) -> None:
    first = turn(folder, (USER,), f"{THOUGHT}I do.  {CALL}")
    served = turn(folder, (USER, {**with_arguments(first.message, REWRITTEN["compact"]), "content": "I did."}, RESULT))
    text = tokenizer().decode(served.prompt)
    assert "I did." in text
    assert "I do." not in text
    assert '"size": 9000.0' in text


def test_one_id_in_two_conversations_is_two_calls(folder: Path) -> None:
    questions = [({"role": "user", "content": text},) for text in ("Write one.", "Write another.")]
    texts = [THOUGHT + CALL, f"{THOUGHT}{CALL.replace('é.py', 'b.py')}"]
    firsts = [turn(folder, messages, text, id="one") for messages, text in zip(questions, texts, strict=True)]
    assert len({first.message["tool_calls"][0]["id"] for first in firsts}) == 1
    for messages, first in zip(questions, firsts, strict=True):
        echo = with_arguments(first.message, REWRITTEN["in another order"])
        assert turn(folder, (*messages, echo, RESULT)).report.reused_tokens == len(first.stored)


def test_another_tenant_gets_nothing_of_it(folder: Path) -> None:
    first = turn(folder, (USER,), THOUGHT + CALL)
    sent = (USER, with_arguments(first.message, REWRITTEN["compact"]), RESULT)
    served = turn(folder, sent, tenant="b")
    assert (served.prompt, served.report.reused_tokens) == (canonical(sent), 0)


def test_an_answers_memo_is_deleted_with_its_conversation_to_the_last_byte(folder: Path) -> None:
    async def scenario() -> None:
        async with running(folder, forgets=True) as rig:
            for session in ("one", "two"):
                question = {"role": "user", "content": session}
                served = await take_turn(rig, (question,), f"{THOUGHT}{f'the word of {session} ' * 100}{CALL}", session=session)
                assert len(served.prompt) < SEGMENT_TOKENS < len(served.stored)
                # Another conversation diverges in the middle of the answer: its first block stays.
                await events(await rig.ask([*served.stored[:SEGMENT_TOKENS], 5, 6], tenant="", session="a branch"))
            await rig.engine.sessions.remove("", "one")

    asyncio.run(scenario())
    stored = b"".join(path.read_bytes() for path in folder.glob("index.db*"))
    assert (b"the word of one" in stored, b"the word of two" in stored) == (False, True)


def test_a_damaged_memo_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = turn(folder, (USER,), THOUGHT + CALL)
    with closing(sqlite3.connect(folder / "index.db", isolation_level=None)) as index:
        index.execute("UPDATE memo SET data = replace(data, '9000', '8000')")
    sent = (USER, with_arguments(first.message, REWRITTEN["in another order"]), RESULT)
    assert tokenizer().decode(turn(folder, sent).prompt) == tokenizer().decode(canonical(sent))
    assert "of the index is damaged" in caplog.text


def test_sampled_text_of_another_length_does_not_shift_the_location_of_a_miss(folder: Path) -> None:
    """Calls with more spaces than the template writes, and a result after them that the client changed."""
    wide = CALL.replace(":", ":" + " " * 40)
    first = turn(folder, (USER,), f"{THOUGHT}{wide}\n{wide}")
    messages = (USER, first.message, {"role": "tool", "content": "one " * 20}, {"role": "tool", "content": "two " * 20})
    turn(folder, messages)
    missed = turn(folder, (*messages[:-1], {"role": "tool", "content": "two two three"})).report.miss
    assert missed is not None
    assert (missed.where, missed.field) == ("message 3 (tool)", "content")
    missed = turn(folder, (USER, {**first.message, "reasoning_content": ""}, *messages[2:])).report.miss
    assert missed is not None
    assert (missed.where, missed.field) == ("message 1 (assistant)", "reasoning_content")

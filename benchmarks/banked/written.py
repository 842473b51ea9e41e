"""How many bytes does a turn write, and how many must it? Ten turns of a conversation on the bundled model, through its engine.

A turn must write its new tokens' rows and its snapshots. What else it writes is listed separately: the rows of the block that was not full,
which is written again; heads of records; the index and its log. The first turn makes three snapshots, later ones two.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from banked.asking import events, running, submit, until_written
from banked.traffic import Log, counted
from forerun.bank.tier import format
from forerun.bank.tier.disk import DiskTier
from forerun.demo.conversation import cut, package_sources
from forerun.engine.local import LocalEngine
from forerun.state.record import Record
from forerun.values import BankUse, Chat, Content, Done, Prompt

TURNS, FIRST_TOKENS, LATER_TOKENS, ANSWER_TOKENS = 10, 2_500, 250, 60
CONFIG = {"turns": TURNS, "first_tokens": FIRST_TOKENS, "later_tokens": LATER_TOKENS, "answer_tokens": ANSWER_TOKENS}


def measure() -> dict[str, Any]:
    """A row a turn, and their sums."""
    with tempfile.TemporaryDirectory() as folder:
        turns = asyncio.run(conversation(Path(folder) / "bank"))
    total = {name: sum(turn[name] for turn in turns) for name in turns[0]}
    later = {name: sum(turn[name] for turn in turns[1:]) for name in turns[0]}
    print(f"{TURNS} turns: {total['bytes'] / 1e6:.2f} MB written, {total['bytes'] / total['floor']:.2f} of what must be")
    return {
        "turns": turns,
        "total": total,
        "over_floor": total["bytes"] / total["floor"],
        "later_over_floor": later["bytes"] / later["floor"],
    }


def checks(found: dict[str, Any]) -> dict[str, bool]:
    """What must hold."""
    block = max(turn["rewritten_tokens"] for turn in found["turns"])
    return {"a turn writes at most 1,023 tokens that were written before": block <= 1023}


async def conversation(folder: Path) -> list[dict[str, Any]]:
    """What each turn wrote."""
    messages: list[dict[str, Any]] = []
    async with running(folder) as engine:
        await answered(engine, Chat(({"role": "user", "content": "Hello."},), (), {"enable_thinking": False}), "bypass")
        turns = []
        for question in questions(engine):
            messages.append({"role": "user", "content": question})
            turn, text = await one(engine, folder, tuple(messages))
            turns.append(turn)
            messages.append({"role": "assistant", "content": text})
    return turns


async def one(engine: LocalEngine, folder: Path, messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], str]:
    """A turn, and the bytes that it wrote."""
    spec, log = engine.worker.model().family.spec, Log(folder)
    with puts() as put, log.watch():
        before = counted()["wchar"]
        text, new_tokens = await answered(engine, Chat(messages, (), {"enable_thinking": False}), "use")
        await until_written(engine)
        written = counted()["wchar"] - before
    floor = new_tokens * spec.bytes_per_token + put["snapshots"] * spec.bytes_per_snapshot
    records = put["segment_bytes"] + put["snapshot_bytes"]
    parts = {"segment_bytes": put["segment_bytes"], "snapshot_bytes": put["snapshot_bytes"], "log_bytes": log.num_bytes}
    rewritten = put["segment_tokens"] - new_tokens
    turn = {"new_tokens": new_tokens, "rewritten_tokens": rewritten, "snapshots": put["snapshots"], "bytes": written, **parts}
    return turn | {"index_bytes": written - records - log.num_bytes, "floor": floor}, text


async def answered(engine: LocalEngine, prompt: Prompt, bank: BankUse) -> tuple[str, int]:
    """The answer, and how many tokens the state has more than before: the answer's last one is not computed."""
    text, new_tokens = "", 0
    async for _, event in events(await submit(engine, prompt, max_tokens=ANSWER_TOKENS, bank=bank)):
        if isinstance(event, Content):
            text += event.text
        if isinstance(event, Done):
            new_tokens = event.report.computed_tokens + event.usage.completion_tokens - 1
    return text, new_tokens


@contextmanager
def puts() -> Iterator[Counter[str]]:
    """Counts the files that are written while the block runs, by kind."""
    found, put = Counter[str](), DiskTier.put

    def noted(tier: DiskTier, record: Record) -> None:
        put(tier, record)
        found[f"{record.info.kind}_bytes"] += format.file_bytes(record.info)
        found["snapshots" if record.info.kind == "snapshot" else "segments"] += 1
        found["segment_tokens"] += len(record.info.tokens) if record.info.kind == "segment" else 0

    DiskTier.put = noted  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        DiskTier.put = put  # type: ignore[method-assign]


def questions(engine: LocalEngine) -> Iterator[str]:
    """What is question, each with a piece of the package's own text, cut to its tokens."""
    rest = "\n".join(package_sources().values())
    for number in range(TURNS):
        budget = LATER_TOKENS if number else FIRST_TOKENS
        shown, _ = cut(rest[: 8 * budget], budget, lambda text: len(engine.prompter.tokenizer.encode(text, tenant="")))
        rest = rest[len(shown) :]
        yield f"What does this do?\n{shown}"

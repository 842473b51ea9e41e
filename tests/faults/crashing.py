"""A process that takes turns on a bank until it is killed, and says what it sees: the child of tools/crash_loop.py."""

from __future__ import annotations

import json
import os
import random
from contextlib import closing
from pathlib import Path

import mlx.core as mx
from tests import talking, tiny
from tests.records import bytes_under
from tests.running import logits, read

CONVERSATIONS = 4
MOST_TOKENS = 400
RAM_BYTES, DISK_BYTES = 200_000, 12 << 20
ENTRY_BYTES = 4096 + MOST_TOKENS * talking.TINY.spec.bytes_per_token + talking.TINY.spec.bytes_per_snapshot


def live(folder: Path, number: int) -> None:
    """Say our number when ready; then check what the last one left, open the bank, check its bytes, and take turns until killed."""
    mx.eval(logits(talking.TINY, read(talking.TINY, [1])))
    say(str(os.getpid()))
    if bytes_under(folder / "bank") > DISK_BYTES + ENTRY_BYTES:
        say("over_the_cap")
    bank = talking.opened(folder / "bank", ram_limit_bytes=RAM_BYTES, disk_limit_bytes=DISK_BYTES)
    disk = bank._disk
    if disk is None or not disk.wait_until_reconciled(30) or disk.num_bytes != bytes_under(folder / "bank"):
        say("unaccounted")
    say("opened")
    rng = random.Random(number)
    with closing(bank):
        while True:
            who = rng.randrange(CONVERSATIONS)
            told = folder / f"{who}.json"
            stored = json.loads(told.read_text()) if told.exists() else tiny.words(who, 40)
            stored = stored if len(stored) < MOST_TOKENS else stored[: rng.randrange(40, MOST_TOKENS)]
            prompt = stored + tiny.words((number, rng.random()), rng.randrange(1, 30))
            turn = talking.turn(bank, prompt, max_tokens=4)
            say("turns")
            if turn.restored.reused_tokens:
                say("reused_turns")
            if not mx.array_equal(turn.logits, logits(talking.TINY, read(talking.TINY, prompt))):
                say("wrong_logits")
            told.with_suffix(".tmp").write_text(json.dumps(turn.stored))
            told.with_suffix(".tmp").replace(told)


def say(word: str) -> None:
    """Tell the loop, in one write that a kill cannot split."""
    os.write(1, f"{word}\n".encode())

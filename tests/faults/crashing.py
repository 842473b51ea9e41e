"""A process that takes turns on a bank until it is killed, and reports what it finds: the child of tools/crash_loop.py."""

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
    """Report the process id when ready; then check what the last child left, open the bank, check its bytes, take turns until killed."""
    mx.eval(logits(talking.TINY, read(talking.TINY, [1])))
    report(str(os.getpid()))
    if bytes_under(folder / "bank") > DISK_BYTES + ENTRY_BYTES:
        report("over_the_cap")
    bank = talking.opened(folder / "bank", ram_limit_bytes=RAM_BYTES, disk_limit_bytes=DISK_BYTES)
    disk = bank._disk
    if disk is None or not disk.wait_until_reconciled(30) or disk.num_bytes != bytes_under(folder / "bank"):
        report("unaccounted")
    report("opened")
    rng = random.Random(number)
    with closing(bank):
        while True:
            who = rng.randrange(CONVERSATIONS)
            path = folder / f"{who}.json"
            stored = json.loads(path.read_text()) if path.exists() else tiny.words(who, 40)
            stored = stored if len(stored) < MOST_TOKENS else stored[: rng.randrange(40, MOST_TOKENS)]
            prompt = stored + tiny.words((number, rng.random()), rng.randrange(1, 30))
            turn = talking.turn(bank, prompt, max_tokens=4)
            report("turns")
            if turn.restored.reused_tokens:
                report("reused_turns")
            if not mx.array_equal(turn.logits, logits(talking.TINY, read(talking.TINY, prompt))):
                report("wrong_logits")
            path.with_suffix(".tmp").write_text(json.dumps(turn.stored))
            path.with_suffix(".tmp").replace(path)


def report(word: str) -> None:
    """Report a word to the loop, in one write that a kill cannot split."""
    os.write(1, f"{word}\n".encode())

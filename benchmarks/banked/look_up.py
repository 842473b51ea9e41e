"""What does it cost to look up a prompt among 10, 1,000 and 100,000 stored conversations of 49,192 tokens?

Rows of the index only, no payloads. Every thousand conversations share their first 48 blocks (a system prompt, tools and files that agents
begin with) and differ in a last block of 40 tokens, with a snapshot at its end. A look-up is what a restore does before it reads: the
hashes of the prompt's blocks, their rows, the deepest snapshot, and the nearest conversation. The database's pages are warm.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from forerun.bank.match import PrefixChain, match
from forerun.bank.tier.folder import hold
from forerun.state.record import Identity, Kind, PrefixHasher

CONVERSATIONS = (10, 1_000, 100_000)
LOOK_UPS = 100
GROUP, BLOCKS, TAIL_TOKENS, VOCAB = 1_000, 48, 40, 150_000
CONFIG = {"group": GROUP, "blocks": BLOCKS, "tail_tokens": TAIL_TOKENS, "look_ups": LOOK_UPS}
LIMIT_MS, LIMIT_FACTOR = 5.0, 2.0


def measure() -> dict[str, Any]:
    """A row for each number of conversations."""
    rows = [row(num, LOOK_UPS) for num in CONVERSATIONS]
    for each in rows:
        print(f"{each['conversations']:>7,} conversations: {each['median_ms']:.2f} ms, processor {each['cpu_median_ms']:.2f} ms")
    return {"measured": rows}


def checks(found: dict[str, Any]) -> dict[str, bool]:
    """What must hold."""
    medians = [row["median_ms"] for row in found["measured"]]
    return {
        "a look-up takes 5 ms at most": max(medians) <= LIMIT_MS,
        "among 100,000 it takes at most twice as long as among 10": max(medians) <= LIMIT_FACTOR * min(medians),
    }


@dataclass(frozen=True)
class Rows:
    """A tier that is its index."""

    index: Any
    source: str = "ssd"


def row(num: int, look_ups: int) -> dict[str, Any]:
    """Milliseconds of look-ups among so many conversations."""
    hasher = PrefixHasher(b"secret", "", Identity("w", "m", "t", "c", "float32", "exact"))
    with tempfile.TemporaryDirectory() as folder:
        index = hold(Path(folder) / "bank")
        fill(index, hasher, num)
        rng, wall, processor = random.Random(1), [], []
        for _ in range(look_ups):
            prompt = tokens_of(rng.randrange(num)) + [rng.randrange(VOCAB) for _ in range(20)]
            start, cpu_start = time.perf_counter(), time.process_time()
            position = look_up(Rows(index), hasher, prompt)
            wall.append(1000 * (time.perf_counter() - start))
            processor.append(1000 * (time.process_time() - cpu_start))
            assert position == len(prompt) - 20
        num_bytes = index.num_bytes
        index.close()
    medians = {"median_ms": statistics.median(wall), "cpu_median_ms": statistics.median(processor)}
    return {"conversations": num, **medians, "index_bytes": num_bytes, "wall_ms": wall, "cpu_ms": processor}


def look_up(tier: Any, hasher: Any, prompt: list[int]) -> int:
    """As a restore does it. Returns the position of the deepest snapshot."""
    found = match([tier], hasher, PrefixChain.of(hasher, prompt))
    plan = next(found.plans())
    assert found.nearest()[0] == plan.position
    return plan.position


def tokens_of(number: int) -> list[int]:
    """The conversation of that number."""
    shared, own = random.Random(number // GROUP), random.Random(f"tail {number}")
    return [shared.randrange(VOCAB) for _ in range(BLOCKS * 1024)] + [own.randrange(VOCAB) for _ in range(TAIL_TOKENS)]


def fill(index: Any, hasher: Any, num: int) -> None:
    """Add the rows of so many conversations."""
    for first in range(0, num, GROUP):
        tokens = tokens_of(first)
        nodes = hasher.nodes(tokens)
        blocks = [tuple(tokens[i * 1024 : (i + 1) * 1024]) for i in range(BLOCKS)]
        rows = [replace(hasher.info("segment", nodes[i], i * 1024, blocks[i]), num_bytes=1 << 20) for i in range(BLOCKS)]
        for number in range(first, min(first + GROUP, num)):
            own = random.Random(f"tail {number}")
            tail = tuple(own.randrange(VOCAB) for _ in range(TAIL_TOKENS))
            infos = (hasher.info(kind, nodes[-1], BLOCKS * 1024, tail) for kind in get_args(Kind))
            rows += [replace(info, num_bytes=1 << 20) for info in infos]
        index.add(rows, 0.0)

"""The turns: the report's five turns, with a new process before A2 and A4; and pairs of the same turn from RAM and from SSD."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evidence import ratio_interval
from forerun.demo.conversation import Conversation, Message, user
from forerun.demo.server import Server
from forerun.errors import ForerunError
from layouts.arms import GREEDY, Arm, ask, running

TURNS = (("A1", "cold"), ("A2", "ssd"), ("A3", "ram"), ("A4", "ssd"), ("A5", "ram"))
SESSIONS = (("A1",), ("A2", "A3"), ("A4", "A5"))  # turns of one process
FIRST_CAP, LATER_CAP, GREEDY_CAP, PAIR_CAP = 256, 768, 128, 128
PAIR_FLAGS = ("--draft-depth", "2")
MIN_PAIRS, MAX_PAIRS, WIDEST = 9, 31, 0.10
RATES = ("prefill_tok_per_s", "decode_tok_per_s")
Progress = Callable[[str], None]


def five_turns(
    arm: Arm, folder: Path, talk: Conversation, sampling: dict[str, Any], caps: tuple[int, int], progress: Progress
) -> list[dict[str, Any]]:
    """The turns in order: name, path, messages and what `ask` found. The bank in `folder` is private and empty at first, unless `copied`
    has put the first turn there. `folder`/first is the bank after the first turn.
    """
    rows: list[dict[str, Any]] = []
    messages = talk.opening
    for names in SESSIONS:
        with running(arm, folder) as server:
            for name in names:
                found = ask(server, talk, messages, sampling, caps[name != "A1"])
                rows.append({"turn": name, "path": found["report"]["source"], "messages": messages, **found})
                progress(f"{arm.name} {name}: {found['report']['source']}, {found['usage']['prompt_tokens']} tokens")
                messages = (*messages, {"role": "assistant", "content": found["text"]}, *_continuation(talk, len(rows) - 1))
            server.wait_until_written()
        if names == SESSIONS[0]:
            shutil.copytree(folder / "bank", folder / "first")
    return rows


def copied(stored: Path, folder: Path) -> Path:
    """`folder` with the bank that the turns in `stored` had after the first: its prompt, the longest, need not be prefilled again."""
    shutil.copytree(stored / "first", folder / "bank")
    return folder


def _continuation(talk: Conversation, turn: int) -> tuple[Message, ...]:
    return talk.continuations[turn] if turn < len(talk.continuations) else ()


def pairs(
    arm: Arm, stored: Path, folder: Path, talk: Conversation, base: tuple[Message, ...], sampling: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """The same turn after `base` (which the bank in `stored` holds), restored from RAM and from SSD: samples, and ratios SSD over RAM.

    Two servers, one of which caches nothing in RAM; a fixed draft depth, so that both do the same work. The last turn of `base` and a first
    pair, which warm both up, are left out. Every pair has other tokens.
    """
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for tier, flags in {"ram": (), "ssd": ("--bank-ram-bytes", "0")}.items():
            shutil.copytree(stored / "bank", folder / tier / "bank")
            servers[tier] = stack.enter_context(running(arm, folder / tier, *PAIR_FLAGS, *flags))
            ask(servers[tier], talk, base[:-1], GREEDY, GREEDY_CAP)
        _pair(servers, talk, base, sampling, 0)
        samples: list[dict[str, dict[str, Any]]] = []
        while len(samples) < MIN_PAIRS or (len(samples) < MAX_PAIRS and is_wide(ratios(samples))):
            samples.append(_pair(servers, talk, base, sampling, len(samples) + 1))
            progress(f"pair {len(samples)}")
    return {"ratios": ratios(samples), "answers_equal": all(s["ram"]["text"] == s["ssd"]["text"] for s in samples), "samples": samples}


def _pair(
    servers: dict[str, Server], talk: Conversation, base: tuple[Message, ...], sampling: dict[str, Any], number: int
) -> dict[str, dict[str, Any]]:
    """One turn on both servers, in alternating order. Waits until all of it is written."""
    messages = (*base, user(f"Pair {number}."), *talk.continuations[-1])
    found = {}
    for tier in random.Random(number).sample(list(servers), 2):
        found[tier] = ask(servers[tier], talk, messages, sampling, PAIR_CAP)
        if number and found[tier]["report"]["source"] != tier:
            raise ForerunError(f"pair {number}: {tier} was requested, the state came from {found[tier]['report']['source']}")
        servers[tier].wait_until_written()
    return found


def ratios(samples: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Of both rates: SSD over RAM, median and 90 % interval."""
    return {rate: ratio_interval(*([s[tier]["report"][rate] for s in samples] for tier in ("ssd", "ram"))) for rate in RATES}


def is_wide(intervals: dict[str, dict[str, float]]) -> bool:
    """Whether one of the intervals is too wide."""
    return any(each["high"] - each["low"] > WIDEST for each in intervals.values())

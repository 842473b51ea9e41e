"""The bundled model: 200 prompts x 64 tokens with drafts equal plain decoding, and as many drafts are accepted as in another program.

With `--results FOLDER` the counts are written there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests import tiny
from tests.decode.drafting import SEEDED, check, generation, plainly, run, run_compiled
from tests.decode.guessing import RecordingFamily
from tests.running import read
from tests.talking import tokenizer

from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.draft_stats import Round
from forerun.decode.round import Rounds
from forerun.demo.conversation import package_sources
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous
from forerun.state.record import Identity
from forerun.values import GREEDY, Sampling, Source

Write = Callable[[str, dict[str, Any]], None]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PROMPTS, TOKENS = range(200), 64
DEPTHS = [(1,), (2,), (3,), (7,), (0, 1, 2, 3)]
IDENTITY = Identity("weights", "mtp1", "tokenizer", "template", "float32", "exact")
STOPS = tokenizer().stop_ids
pytestmark = pytest.mark.long


@cache
def steps() -> StepTable:
    return StepTable(tiny.demo().family, eager_reason="")


def open_bank(folder: Path) -> Bank:
    disk = DiskTier(folder, limit_bytes=1 << 32, daily_limit_bytes=1 << 62, index=hold(folder))
    return Bank(tiny.demo().family.spec, IDENTITY, disk=disk, secret=secret(folder), ram_limit_bytes=1 << 30)


def state(prompt: list[int], source: Source, folder: Path) -> Cache[Contiguous]:
    """The state of the whole prompt: by prefill, or stored and restored."""
    live = read(tiny.demo().family, prompt)
    if source == "cold":
        return live
    bank = open_bank(folder)
    bank.remember(live, prompt, [live.snapshot()], FinishedTurn("", "", 1, 0, 1))
    if source == "ssd":
        assert bank.flush(60)
        bank.close()
        bank = open_bank(folder)
    found = bank.restore(prompt, tenant="", session=None, layout=Contiguous(), headroom_tokens=TOKENS)
    assert (found.source, found.reused_tokens) == (source, len(prompt))
    bank.close()
    return found.cache


def piece_of_source(rng: random.Random) -> list[int]:
    """20 to 300 tokens of the package's own files."""
    tokens = tokenizer().encode(rng.choice(sorted(package_sources().values())), tenant="")
    num = rng.randrange(20, 300)
    start = rng.randrange(max(1, len(tokens) - num))
    return tokens[start : start + num]


def test_200_answers(tmp_path: Path, write_result: Write) -> None:
    family, counts = tiny.demo().family, Counter[str]()
    for number in PROMPTS:
        rng = random.Random(number)
        wanted = plainly(family, piece_of_source(rng), SEEDED if number % 3 == 0 else GREEDY, TOKENS)
        source: Source = rng.choice(["cold", "ram", "ssd"])
        live, policy = state(wanted.prompt, source, tmp_path / str(number)), DepthPolicy(DEPTHS[number % len(DEPTHS)])
        is_compiled = bool(rng.getrandbits(1))
        run_one = partial(run_compiled, steps()) if is_compiled else partial(run, RecordingFamily(family))
        drafted = run_one(live, wanted, policy, rng)
        check(drafted, live, wanted)
        counts.update({"answers": 1, source: 1, "compiled": is_compiled, "tokens": len(drafted.tokens)})
        counts.update(drafted=drafted.drafted, accepted=drafted.accepted)
    assert counts["accepted"] > 2000
    write_result("drafting_is_plain_decoding", {"counts": counts, "differences": 0})


def test_512_greedy_tokens() -> None:
    family, prompt, answers = tiny.demo().family, piece_of_source(random.Random(1)), []
    for depth in (0, 1, 3):
        answer = generation(steps(), read(family, prompt), prompt, GREEDY, DepthPolicy((depth,)), max_tokens=512)
        assert len("".join(answer)) > 0
        assert (sum(answer.draft_stats.accepted) > 0) == (depth > 0)
        answers.append(answer.tokens)
    assert len(answers[0]) == 512
    assert answers[0] == answers[1] == answers[2]


class RecordingPolicy(DepthPolicy):
    """Depth 3; records position and result of each round."""

    def __init__(self) -> None:
        super().__init__((3,))
        self.observed: list[tuple[int, Round]] = []

    def observe(self, context_tokens: int, done: Round, kind: str = "", others: Sequence[Round] = ()) -> None:
        self.observed.append((context_tokens, done))


def accepted(prompt: list[int], sampling: Sampling, num: int, live: Cache[Contiguous]) -> list[int]:
    """Of each round whose drafts all lie in the answer: how many were accepted."""
    policy = RecordingPolicy()
    answer = generation(steps(), live, prompt, sampling, policy, max_tokens=num, stop_ids=STOPS)
    assert len(list(answer)) > 0
    last = len(prompt) + answer.num_sampled - 1
    return [done.accepted for context_tokens, done in policy.observed if context_tokens + 3 <= last and done.drafted == 3]


def accepted_everywhere(prompt: list[int], sampling: Sampling, num: int, live: Cache[Contiguous]) -> list[int]:
    """The same with a round at every position of the answer: all but the first token of each is thrown away."""
    rounds, seen = Rounds(steps(), live, prompt, sampling), []
    tokens = [rounds.first()]
    rounds.append(tokens)

    def take(new: list[int]) -> int:
        tokens.append(new[0])
        rounds.append(new[:1])
        return 1

    while len(tokens) < num and tokens[-1] not in STOPS:
        seen.append(rounds.run(3, take).accepted)
    return seen[: len(tokens) - 3]


def rates(rounds: list[int]) -> list[float]:
    """Acceptance by depth, of the drafts whose predecessors were accepted."""
    return shares([sum(n >= depth for n in rounds) for depth in range(4)])


def shares(counts: list[float]) -> list[float]:
    return [after / before for before, after in pairwise(counts)]


@pytest.mark.parametrize("rule", ["greedy", "sampled"])
@pytest.mark.parametrize("where", ["walked", "everywhere"])
def test_acceptance_is_what_the_training_code_finds(rule: str, where: str, write_result: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = count()
    monkeypatch.setattr("forerun.decode.round.fresh_seed", lambda: next(seeds))
    found = json.loads((RESULTS / "acceptance_by_training_code.json").read_text())
    sampling = GREEDY if rule == "greedy" else Sampling(1.0, 0.95, 20, 0.0, None, 1.0, 0.0, 0.0, {})
    measure, rounds = accepted if where == "walked" else accepted_everywhere, []
    for prompt in found["prompts"]:
        live = read(tiny.demo().family, prompt)
        end = live.snapshot()
        for _ in range(1 if rule == "greedy" else 40):
            rounds += measure(prompt, sampling, found["new_tokens"], live)
            live.truncate(end)
    walk = found[rule]["walked"]
    wanted = shares([walk["steps"], *walk["accepted"]]) if where == "walked" else found[rule]["conditional_by_depth"]
    write_result(f"acceptance_{rule}_{where}", {"rounds": len(rounds), "conditional_by_depth": rates(rounds), "by_training_code": wanted})
    assert rates(rounds) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_restored_conversation_accepts_as_many_drafts(sampling: Sampling, tmp_path: Path) -> None:
    prompts = json.loads((RESULTS / "acceptance_by_training_code.json").read_text())["prompts"]
    kinds: dict[Source, list[int]] = {"cold": [], "ram": [], "ssd": []}
    for source, rounds in kinds.items():
        for number, prompt in enumerate(prompts):
            rounds += accepted(prompt, sampling, 192, state(prompt, source, tmp_path / f"{number} {source}"))[:64]
    assert len(kinds["cold"]) > 40
    assert kinds["cold"] == kinds["ram"] == kinds["ssd"]

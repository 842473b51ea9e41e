"""The conversations that are in RAM as live caches, found by what they begin with. Knows nothing of tiers, disks or policy.

Each hangs from the nodes of its own tokens, so that a look-up costs the prompt's blocks and not the conversations' tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from forerun.bank import retain
from forerun.bank.live import Live
from forerun.bank.match import Trail
from forerun.state.cache import Snapshot
from forerun.state.record import num_shared


@dataclass(frozen=True, slots=True)
class Reach:
    """A mark of a live conversation at which a prompt can go on."""

    live: Live
    mark: Snapshot
    is_own: bool

    @property
    def worth_tokens(self) -> int:
        """Its position, and what may be read again rather than copy the conversation of another name."""
        return self.mark.position + retain.OWN_TOKENS * self.is_own


class Lives:
    """Live conversations, in the order in which they came."""

    def __init__(self) -> None:
        self._all: list[Live] = []
        self._at: dict[str, list[Live]] = {}

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, live: Live) -> None:
        """Keep it."""
        self._all.append(live)
        for node in live.nodes:
            self._at.setdefault(node, []).append(live)

    def remove(self, live: Live) -> None:
        """Let go of it."""
        self._all.remove(live)
        for node in live.nodes:
            self._at[node].remove(live)
            if not self._at[node]:
                del self._at[node]

    def of(self, tenant: str, session: str) -> list[Live]:
        """Those of one conversation: several where requests went on from the same place side by side."""
        return [live for live in self if (live.tenant, live.session) == (tenant, session)]

    def clear(self) -> None:
        """Let go of all."""
        self._all.clear()
        self._at.clear()

    def best(self, trail: Trail, session: str | None, passing: Collection[int]) -> Reach | None:
        """The mark within the prompt that is worth most; of equals that of the conversation used last. passing: ids of those not asked."""
        best: Reach | None = None
        bonus_tokens = retain.OWN_TOKENS if session else 0
        for depth in reversed(range(len(trail.nodes))):
            if best and best.worth_tokens >= trail.start(depth + 1) + bonus_tokens:
                break
            lives = [x for x in self._at.get(trail.nodes[depth], ()) if id(x) not in passing]
            found = [Reach(x, mark, x.session == session) for x in lives if (mark := x.mark_in(depth, trail.rest(depth)))]
            best = max([*found, *filter(None, [best])], key=lambda r: (r.worth_tokens, r.live.used_s), default=None)
        return best

    def nearest(self, trail: Trail) -> tuple[int, tuple[int, ...]]:
        """How many leading tokens of the prompt a live conversation has too, at most, and how its block goes on after these."""
        for depth in reversed(range(len(trail.nodes))):
            blocks = [x.block(depth) for x in self._at.get(trail.nodes[depth], ())]
            if blocks:
                shared, block = max(((num_shared(b, trail.rest(depth)), b) for b in blocks), key=lambda x: (x[0], len(x[1])))
                return trail.start(depth) + shared, block[shared:]
        return 0, ()

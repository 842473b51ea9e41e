"""The result of one round, and sums over the rounds of an answer. Plain numbers: knows no MLX and no policy."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_DEPTH = 7


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round: the emitted tokens in order, the number of drafts, and how many of them were accepted.

    seconds: from its start to its one synchronisation with the host; None if the round before had another depth, which leaves it
    different work, so that the time does not measure its depth. is_forced: its drafts were a grammar's, not the head's.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    seconds: float | None
    is_forced: bool = False


@dataclass(slots=True)
class DraftStats:
    """Counts of rounds. drafted[i], accepted[i]: with a draft of depth i + 1 made, accepted; depths[k]: with k drafts, all of the head.

    forced: accepted drafts of a grammar, whose rounds count as without drafts.
    """

    drafted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    depths: list[int] = field(default_factory=lambda: [0] * (MAX_DEPTH + 1))
    forced: int = 0

    @property
    def rounds(self) -> int:
        return sum(self.depths)

    @property
    def deepest(self) -> int:
        """The most drafts of any round."""
        return max((depth for depth, rounds in enumerate(self.depths) if rounds), default=0)

    def add(self, done: Round) -> None:
        """Count a round."""
        if done.is_forced:
            self.depths[0] += 1
            self.forced += done.accepted
            return
        self.depths[done.drafted] += 1
        for counts, depth in ((self.drafted, done.drafted), (self.accepted, done.accepted)):
            for i in range(depth):
                counts[i] += 1

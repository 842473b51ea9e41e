"""What one round gave, and the sums over the rounds of an answer. Plain numbers: knows no MLX and no policy."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_DEPTH = 7


@dataclass(frozen=True, slots=True)
class Round:
    """What a round gave: the tokens that stand, in order; how many were drafted, and how many of the drafts were accepted.

    seconds: from its start to its one synchronisation with the host; None if that is no measure of its depth, because the round before
    it had another one and left it other work.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    seconds: float | None


@dataclass(slots=True)
class DraftStats:
    """Counts over rounds. drafted[i], accepted[i]: those in which a draft of depth i + 1 was made, was accepted; depths[k]: of k drafts."""

    drafted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    depths: list[int] = field(default_factory=lambda: [0] * (MAX_DEPTH + 1))

    @property
    def rounds(self) -> int:
        return sum(self.depths)

    @property
    def deepest(self) -> int:
        """The most drafts of any round."""
        return max((depth for depth, rounds in enumerate(self.depths) if rounds), default=0)

    def add(self, done: Round) -> None:
        """Count a round."""
        self.depths[done.drafted] += 1
        for counts, depth in ((self.drafted, done.drafted), (self.accepted, done.accepted)):
            for i in range(depth):
                counts[i] += 1

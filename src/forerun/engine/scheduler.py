"""Who runs: admission to the queue and to the batch, which prompt is prefilled next, and how its time is shared with decoding.

Pure: no threads, no clock, no MLX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from forerun.engine.request import Request

MAX_WAITING = 16
PREFILL_FRAC = 0.85  # of the time, for prefill while others decode
AGING_TOKENS_PER_S = 500  # by which a prompt ranks as shorter for each second since it arrived: short ones cannot pass it for ever
MUCH_LONGER = 1.5  # times


def next_request(waiting: Sequence[Request], served_s: Mapping[str, float]) -> Request | None:
    """The request to run next: the oldest of the least recently served tenant, so that one tenant's many requests do not delay another's.
    Cancelled ones are skipped. served_s: when each tenant's last request started, of time.monotonic().
    """
    live = [request for request in waiting if not request.is_cancelled]
    return min(live, key=lambda request: served_s.get(request.job.tenant, 0.0), default=None)


def may_wait(waiting: Sequence[Request], tenant: str, num_free: int) -> bool:
    """Whether the tenant may queue one more request. num_free: how many of the queue may start at once, or once a common beginning is
    computed; they take no place of those that wait. A full queue still takes one from a tenant with none waiting.
    """
    return len(waiting) < MAX_WAITING + num_free or all(request.job.tenant != tenant for request in waiting)


def retry_after_s(num_waiting: int, mean_request_s: float) -> int:
    """Seconds after which a refused client should retry: the time for half of the queue, between 1 and 60."""
    return max(1, min(60, round(num_waiting * mean_request_s / 2)))


class Prompt(NamedTuple):
    """A prompt that is being prefilled. served_s: when its tenant's last piece was computed; waited_s: since it arrived."""

    tenant: str
    remaining_tokens: int
    waited_s: float
    is_lent: bool


def next_prompt(prompts: Sequence[Prompt], served_s: Mapping[str, float]) -> int:
    """Index of the prompt whose next piece is computed: one whose chunk is begun; else of the least recently served tenant the shortest,
    where waiting makes shorter.
    """

    def rank(index: int) -> tuple[bool, float, float]:
        prompt = prompts[index]
        shortness = prompt.remaining_tokens - AGING_TOKENS_PER_S * prompt.waited_s
        return not prompt.is_lent, served_s.get(prompt.tenant, 0.0), shortness

    return min(range(len(prompts)), key=rank)


class TimeShare:
    """Shares time between prefill and decoding while both have work: after a piece of prefill, rounds until decoding has had its part, at
    least one. By what the last round takes longer, less is due after the next piece.
    """

    def __init__(self) -> None:
        self._owed_s, self._is_round_due = 0.0, False
        self._part_s = self._drafted_s = self._plain_s = 0.0

    def is_prefill_due(self, *, can_decode: bool) -> bool:
        """Whether the next tick prefills, given that there is a prompt."""
        return not can_decode or not (self._is_round_due or self._owed_s > 0)

    def note_prefill(self, seconds: float, *, can_decode: bool) -> None:
        """A piece was computed while others could decode, or not."""
        self._is_round_due, self._part_s = can_decode, seconds * (1 - PREFILL_FRAC) / PREFILL_FRAC
        self._owed_s = self._owed_s + self._part_s if can_decode else 0.0

    @property
    def may_draft(self) -> bool:
        """Whether a round with drafts, as long as the last one, fits into what a piece of prefill leaves, as one must follow each piece; or
        takes little longer than one without.
        """
        return self._drafted_s <= max(self._part_s, MUCH_LONGER * self._plain_s)

    def note_round(self, seconds: float, *, has_drafts: bool) -> None:
        """A round was decoded."""
        if has_drafts:
            self._drafted_s = seconds
        else:
            self._plain_s = seconds
        self._is_round_due = False
        self._owed_s = max(0.0, self._owed_s) - seconds

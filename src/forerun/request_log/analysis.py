"""Analyses a request log: restores by source and layout, misses by reason, layout faults, and requests slower than their peers with the
likely causes. Pure: entries in, values out.

Peers of a request have the same model, numerics and about the same context length; for the speed of prefill also about the same number
of tokens to prefill, since few tokens are always slow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from forerun.request_log.entry import Entry
from forerun.values import Report

NEAR_CONTEXT = 4 / 3  # of two contexts the longer over the shorter, at most
PEERS_A_SIDE = 16
MIN_PEERS = 4  # with fewer, no comparison
MIN_DECODED = 16  # tokens; with fewer, the decoding speed is noise
SLOW_FRAC = 0.75  # of the peers' median speed
MANY = 4 / 3  # times the sequences that its peers shared a round with: an explanation
_SHARED = ("batch", "new batch")  # reasons for eager steps that say no more than that the round was shared
SLOW_TTFT, SLOW_TTFT_S = 1.5, 0.5  # above the peers' median by this factor and by this many seconds


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """An entry with a report."""

    entry: Entry
    report: Report

    @property
    def context_tokens(self) -> int:
        return self.entry.prompt_tokens

    @property
    def decode_tok_per_s(self) -> float | None:
        """None below MIN_DECODED tokens."""
        usage = self.entry.usage
        return self.report.decode_tok_per_s if usage and usage.completion_tokens >= MIN_DECODED else None

    @property
    def ttft_s(self) -> float:
        """From the start of serving to the first token: without the queue, whose length is no property of the request."""
        return max(0.0, self.report.ttft_s - self.report.queue_s)

    @property
    def layout(self) -> str:
        """Of prefill and decoding; one name if they are the same."""
        prefill, decode = self.report.prefill_layout, self.report.layout
        return decode if prefill == decode else f"{prefill}, then {decode}"


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one source and layout: count, shortest and longest context, medians, share of compiled steps. ttft_s: without queue_s."""

    source: str
    layout: str
    num: int
    min_context_tokens: int
    max_context_tokens: int
    prefill_tok_per_s: float | None
    decode_tok_per_s: float | None
    queue_s: float
    ttft_s: float
    compiled_frac: float | None


@dataclass(frozen=True, slots=True)
class MissGroup:
    """Requests with the same kind of miss at the same location: the field and message where they diverge, "" if they do not. num: how many.
    computed_tokens: their sum. last_id: of the last one.
    """

    kind: str
    location: str
    num: int
    computed_tokens: int
    last_id: str


@dataclass(frozen=True, slots=True)
class Outlier:
    """A request that is slower than its peers, or that did not run in the chosen layout. Ratios are to the peers' medians, None without
    peers. faults: see faults_of. causes: other explanations from the log.
    """

    served: ServedRequest
    prefill_ratio: float | None
    decode_ratio: float | None
    ttft_ratio: float | None
    faults: tuple[str, ...]
    causes: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Faults and causes as a message."""
        return "; ".join(self.faults + self.causes) or "nothing in the log explains it"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Requests that ran beside others: count; medians of what a round held and of the seconds that passed for others alone. num_forked: of
    all requests, those whose state was copied from another conversation.
    """

    num: int
    sequences_per_round: float | None
    rows_per_round: float | None
    others_s: float
    num_forked: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The analysis of a log. sharing: None if none ran beside others. unserved: number of cancelled and failed requests by error."""

    groups: tuple[Group, ...]
    sharing: Sharing | None
    misses: tuple[MissGroup, ...]
    outliers: tuple[Outlier, ...]
    unserved: Counter[str]


Peers = dict[int, list[ServedRequest]]


def summarise(entries: Sequence[Entry]) -> Summary:
    """The analysis of these entries, in chronological order."""
    served = [ServedRequest(entry, entry.report) for entry in entries if entry.report]
    unserved = Counter(
        (entry.error or entry.outcome).removeprefix("ForerunError: ") for entry in entries if entry.outcome in ("cancelled", "error")
    )
    return Summary(tuple(_groups(served)), _sharing(served), tuple(_missed(served)), tuple(_outliers(served)), unserved)


def faults_of(report: Report) -> tuple[str, ...]:
    """Messages about layouts that differ from the chosen ones."""
    phases = (("prefilled", report.prefill_layout, report.requested_prefill_layout), ("decoded", report.layout, report.requested_layout))
    return tuple(f"{done} in {actual}, requested {requested}" for done, actual, requested in phases if actual != requested)


def _groups(served: Sequence[ServedRequest]) -> Iterator[Group]:
    by_kind: dict[tuple[str, str], list[ServedRequest]] = defaultdict(list)
    for each in served:
        by_kind[each.report.source, each.layout].append(each)
    for (source, layout), own in sorted(by_kind.items()):
        contexts, steps = [each.context_tokens for each in own], sum(each.report.steps for each in own)
        yield Group(
            source,
            layout,
            len(own),
            min(contexts),
            max(contexts),
            _median([each.report.prefill_tok_per_s for each in own]),
            _median([each.decode_tok_per_s for each in own]),
            median(each.report.queue_s for each in own),
            median(each.ttft_s for each in own),
            sum(each.report.compiled_steps for each in own) / steps if steps else None,
        )


def _sharing(served: Sequence[ServedRequest]) -> Sharing | None:
    forked = [each for each in served if each.report.forked_from]
    beside = [each.report for each in served if each.report.others_s or (each.report.sequences_per_round or 1) > 1]
    if not beside:
        return None
    return Sharing(
        len(beside),
        _median([report.sequences_per_round for report in beside]),
        _median([report.rows_per_round for report in beside]),
        median(report.others_s for report in beside),
        len(forked),
    )


def _missed(served: Sequence[ServedRequest]) -> Iterator[MissGroup]:
    """Groups by reason, the one with the most computed tokens first."""
    by_reason: dict[tuple[str, str], list[ServedRequest]] = defaultdict(list)
    for each in served:
        if miss := each.report.miss:
            by_reason[miss.kind, re.sub(r"message \d+ \((.*)\)", r"a message (\1)", miss.location)].append(each)
    groups = [
        MissGroup(kind, location, len(own), sum(each.report.computed_tokens for each in own), own[-1].entry.id)
        for (kind, location), own in by_reason.items()
    ]
    yield from sorted(groups, key=lambda misses: -misses.computed_tokens)


def _outliers(served: Sequence[ServedRequest]) -> Iterator[Outlier]:
    near = _peers(served, lambda each: (each.entry.model, each.report.numerics))
    alike = _peers(served, lambda each: (each.entry.model, each.report.numerics, each.report.computed_tokens.bit_length()))
    for each in served:
        peers = near[id(each)]
        prefill = _ratio(each.report.prefill_tok_per_s, [p.report.prefill_tok_per_s for p in alike[id(each)]])
        decode = _ratio(each.decode_tok_per_s, [p.decode_tok_per_s for p in peers])
        ttft = _ratio(each.ttft_s, [p.ttft_s for p in peers])
        faults = faults_of(each.report)
        is_late = ttft is not None and ttft > SLOW_TTFT and each.ttft_s * (1 - 1 / ttft) > SLOW_TTFT_S
        is_slow = any(ratio is not None and ratio < SLOW_FRAC for ratio in (prefill, decode))
        if faults or is_slow or is_late:
            yield Outlier(each, prefill, decode, ttft, faults, tuple(_causes(each, peers)))


def _peers(served: Sequence[ServedRequest], kind: Callable[[ServedRequest], object]) -> Peers:
    """For each request, by id(): the others of its kind that are nearest in context length."""
    by_kind: dict[object, list[ServedRequest]] = defaultdict(list)
    for each in served:
        by_kind[kind(each)].append(each)
    peers: Peers = {}
    for own in by_kind.values():
        own.sort(key=lambda each: each.context_tokens)
        for i, each in enumerate(own):
            window = own[max(0, i - PEERS_A_SIDE) : i] + own[i + 1 : i + 1 + PEERS_A_SIDE]
            peers[id(each)] = [peer for peer in window if _is_near(peer, each)]
    return peers


def _is_near(one: ServedRequest, other: ServedRequest) -> bool:
    shorter, longer = sorted((one.context_tokens, other.context_tokens))
    return longer <= NEAR_CONTEXT * shorter


def _causes(each: ServedRequest, peers: Sequence[ServedRequest]) -> Iterator[str]:
    report = each.report
    reason = f"{report.reason} (it differs in {report.miss.location})" if report.miss and report.miss.location else report.reason
    if report.source == "cold" and any(peer.report.source != "cold" for peer in peers):
        yield f"cold: {reason}"
    elif reason:
        yield reason
    usual = _median([peer.report.computed_tokens for peer in peers])
    if usual is not None and report.computed_tokens > 2 * max(1.0, usual):
        yield f"{report.computed_tokens:,} tokens to prefill, its peers had {usual:,.0f}"
    for reason, num in sorted(report.eager_steps.items()):
        if reason not in _SHARED:
            yield f"{num} of {report.steps} steps ran eager ({reason})"
    if report.layout != report.prefill_layout and report.layout == report.requested_layout:
        yield f"decoded in {report.layout}, as chosen for this length"
    yield from _causes_of_others(report, peers)
    usual = _median([peer.report.tokens_per_round for peer in peers])
    if usual is not None and report.tokens_per_round is not None and report.tokens_per_round < SLOW_FRAC * usual:
        yield f"{report.tokens_per_round:.2f} tokens per round, its peers had {usual:.2f}"


def _causes_of_others(report: Report, peers: Sequence[ServedRequest]) -> Iterator[str]:
    usual = _median([peer.report.sequences_per_round for peer in peers])
    if usual is not None and report.sequences_per_round is not None and report.sequences_per_round > MANY * usual:
        yield f"{report.sequences_per_round:.1f} sequences a round, its peers had {usual:.1f}"
    if report.others_s > SLOW_TTFT_S:
        yield f"{report.others_s:.1f} s passed for other requests"


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def _ratio(value: float | None, others: Sequence[float | None]) -> float | None:
    present = [other for other in others if other is not None]
    if value is None or len(present) < MIN_PEERS or not (usual := median(present)):
        return None
    return value / usual

"""What a request log tells: restores by source and layout, what was read and was not known, faults, requests slower than their peers, and
why. Pure: entries in, values out.

Peers of a request are those of the same model and numerics with about as long a context; for the speed of reading, also with about as
many tokens to read, since few tokens are always slow.
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
MIN_PEERS = 4  # fewer say nothing of what is usual
SHORT_WAIT_S = 0.1
MIN_DECODED = 16  # tokens below which a speed of decoding says nothing
SLOW_FRAC = 0.75  # of the peers' speed
SLOW_TTFT, SLOW_TTFT_S = 1.5, 0.5  # times the peers' seconds, and seconds more than theirs


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that gave tokens; report: its entry's."""

    entry: Entry
    report: Report

    @property
    def context_tokens(self) -> int:
        return self.entry.prompt_tokens

    @property
    def decode_tok_per_s(self) -> float | None:
        """None if it decoded too little to tell."""
        usage = self.entry.usage
        return self.report.decode_tok_per_s if usage and usage.completion_tokens >= MIN_DECODED else None

    @property
    def layout(self) -> str:
        """Of reading and of decoding, in one word if they are the same."""
        reading, decoding = self.report.prefill_layout, self.report.layout
        return decoding if reading == decoding else f"{reading}, then {decoding}"


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one source and layout: how many, their shortest and longest context, medians; the share of compiled steps."""

    source: str
    layout: str
    num: int
    min_context_tokens: int
    max_context_tokens: int
    prefill_tok_per_s: float | None
    decode_tok_per_s: float | None
    ttft_s: float
    compiled_frac: float | None


@dataclass(frozen=True, slots=True)
class MissGroup:
    """Requests that did not get all of their prompt's state back for the same reason. kind: of the reason; place: where they part from what
    is stored, which field of whose message, "" where that is not the reason; num: how many; computed_tokens: that they read;
    last_id: of the last.
    """

    kind: str
    location: str
    num: int
    computed_tokens: int
    last_id: str


@dataclass(frozen=True, slots=True)
class Outlier:
    """A request that is slower than its peers or was not run as chosen. The ratios to its peers' medians are None without peers.

    faults: what was not as chosen. causes: what else the log knows that explains it.
    """

    served: ServedRequest
    prefill_ratio: float | None
    decode_ratio: float | None
    ttft_ratio: float | None
    faults: tuple[str, ...]
    causes: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Faults and causes in words."""
        return "; ".join(self.faults + self.causes) or "nothing in the log explains it"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a log tells. unserved: requests that gave no token, or not all that they were to give, by what ended them."""

    groups: tuple[Group, ...]
    misses: tuple[MissGroup, ...]
    outliers: tuple[Outlier, ...]
    unserved: Counter[str]


Peers = dict[int, list[ServedRequest]]


def summarise(entries: Sequence[Entry]) -> Summary:
    """All that is known of these requests, in the order of their entries."""
    served = [ServedRequest(entry, entry.report) for entry in entries if entry.report]
    unserved = Counter(
        (entry.error or entry.outcome).removeprefix("ForerunError: ") for entry in entries if entry.outcome in ("cancelled", "error")
    )
    return Summary(tuple(_groups(served)), tuple(_missed(served)), tuple(_outliers(served)), unserved)


def faults_of(report: Report) -> tuple[str, ...]:
    """What was not as chosen."""
    reading, decoding = report.prefill_layout, report.layout
    found = []
    if reading != report.requested_prefill_layout:
        found.append(f"the prompt was read in {reading}, {report.requested_prefill_layout} was asked for")
    if decoding != report.requested_layout:
        found.append(f"decoded in {decoding}, {report.requested_layout} was asked for")
    return tuple(found)


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
            median(each.report.ttft_s for each in own),
            sum(each.report.compiled_steps for each in own) / steps if steps else None,
        )


def _missed(served: Sequence[ServedRequest]) -> Iterator[MissGroup]:
    """Those that read most first."""
    by_reason: dict[tuple[str, str], list[ServedRequest]] = defaultdict(list)
    for each in served:
        if miss := each.report.miss:
            by_reason[miss.kind, re.sub(r"message \d+ \((.*)\)", r"a message (\1)", miss.location)].append(each)
    found = [
        MissGroup(kind, location, len(own), sum(each.report.computed_tokens for each in own), own[-1].entry.id)
        for (kind, location), own in by_reason.items()
    ]
    yield from sorted(found, key=lambda misses: -misses.computed_tokens)


def _outliers(served: Sequence[ServedRequest]) -> Iterator[Outlier]:
    near = _peers(served, lambda each: (each.entry.model, each.report.numerics))
    alike = _peers(served, lambda each: (each.entry.model, each.report.numerics, each.report.computed_tokens.bit_length()))
    for each in served:
        peers = near[id(each)]
        reading = _ratio(each.report.prefill_tok_per_s, [p.report.prefill_tok_per_s for p in alike[id(each)]])
        decoding = _ratio(each.decode_tok_per_s, [p.decode_tok_per_s for p in peers])
        waiting = _ratio(each.report.ttft_s, [p.report.ttft_s for p in peers])
        faults = faults_of(each.report)
        is_late = waiting is not None and waiting > SLOW_TTFT and each.report.ttft_s * (1 - 1 / waiting) > SLOW_TTFT_S
        is_slow = any(ratio is not None and ratio < SLOW_FRAC for ratio in (reading, decoding))
        if faults or is_slow or is_late:
            yield Outlier(each, reading, decoding, waiting, faults, tuple(_causes(each, peers)))


def _peers(served: Sequence[ServedRequest], kind: Callable[[ServedRequest], object]) -> Peers:
    """For each request, by id: the nearest others of its kind in context."""
    by_kind: dict[object, list[ServedRequest]] = defaultdict(list)
    for each in served:
        by_kind[kind(each)].append(each)
    found: Peers = {}
    for own in by_kind.values():
        own.sort(key=lambda each: each.context_tokens)
        for i, each in enumerate(own):
            window = own[max(0, i - PEERS_A_SIDE) : i] + own[i + 1 : i + 1 + PEERS_A_SIDE]
            found[id(each)] = [peer for peer in window if _is_near(peer, each)]
    return found


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
        yield f"{report.computed_tokens:,} tokens to read, its peers had {usual:,.0f}"
    for reason, num in sorted(report.eager_steps.items()):
        yield f"{num} of {report.steps} steps ran eager ({reason})"
    if report.layout != report.prefill_layout and report.layout == report.requested_layout:
        yield f"decoded in {report.layout}, as chosen for this length"
    yield from _slow_by_chance(report, peers)


def _slow_by_chance(report: Report, peers: Sequence[ServedRequest]) -> Iterator[str]:
    """What was nobody's choice: drafts that were not accepted, others before it in the queue."""
    usual = _median([peer.report.tokens_per_round for peer in peers])
    if usual is not None and report.tokens_per_round is not None and report.tokens_per_round < SLOW_FRAC * usual:
        yield f"{report.tokens_per_round:.2f} tokens a round, its peers had {usual:.2f}"
    if report.queue_s > max(report.ttft_s / 4, SHORT_WAIT_S):
        yield f"{report.queue_s:.1f} s in the queue"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ratio(value: float | None, others: Sequence[float | None]) -> float | None:
    known = [other for other in others if other is not None]
    if value is None or len(known) < MIN_PEERS or not (usual := median(known)):
        return None
    return value / usual

"""The next request to run, admission to the queue, the next prompt to compute, and the time for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine.scheduler import (
    AGING_TOKENS_PER_S,
    MAX_WAITING,
    PREFILL_FRAC,
    Prompt,
    TimeShare,
    may_wait,
    next_prompt,
    next_request,
    retry_after_s,
)


def waiting(*cancelled: bool) -> list[Any]:
    return [of("", is_cancelled=each) for each in cancelled]


def of(tenant: str, *, is_cancelled: bool = False) -> Any:
    return SimpleNamespace(is_cancelled=is_cancelled, job=SimpleNamespace(tenant=tenant))


def test_the_longest_waiting_request_runs_next() -> None:
    requests = waiting(True, False, False)
    assert next_request(requests, {"": 7.0}) is requests[1]


def test_none_runs_if_all_are_cancelled() -> None:
    assert next_request([], {}) is None
    assert next_request(waiting(True, True), {}) is None


def test_tenants_share_fairly() -> None:
    requests, served, order = [of("many"), of("many"), of("many"), of("few"), of("one"), of("few")], {"many": 1.0}, list[str]()
    while (request := next_request(requests, served)) is not None:
        requests.remove(request)
        served[request.job.tenant] = 2.0 + len(order)
        order.append(request.job.tenant)
    assert order == ["few", "one", "many", "few", "many", "many"]


def test_the_queue_has_a_limit() -> None:
    assert MAX_WAITING == 16
    assert [may_wait(waiting(*[False] * num), "", 0) for num in (0, 15, 16, 17)] == [True, True, False, False]
    assert [may_wait(waiting(*[False] * num), "", 3) for num in (18, 19)] == [True, False]
    assert may_wait(waiting(*[False] * 16), "another tenant", 0)


@pytest.mark.parametrize(("mean_s", "expected"), [(0.0, 1), (0.01, 1), (1.0, 8), (5.0, 40), (100.0, 60)])
def test_a_refused_client_retries_when_half_of_the_queue_is_done(mean_s: float, expected: int) -> None:
    assert retry_after_s(16, mean_s) == expected


# --- which prompt is computed next, and how much of the time


def prompt(tokens: int, *, tenant: str = "", waited_s: float = 0.0, is_lent: bool = False) -> Prompt:
    return Prompt(tenant, tokens, waited_s, is_lent)


def test_the_shortest_prompt_of_a_tenant_is_computed_next() -> None:
    assert next_prompt([prompt(9000), prompt(300), prompt(301)], {}) == 1


def test_a_chunk_that_is_begun_is_finished_first() -> None:
    prompts = [prompt(30), prompt(9000, is_lent=True), prompt(10, tenant="never served")]
    assert next_prompt(prompts, {"": 5.0}) == 1


def test_tenants_are_served_in_turn_whatever_the_length_of_their_prompts() -> None:
    prompts = [prompt(300, tenant="many"), prompt(200, tenant="many"), prompt(90_000, tenant="one")]
    assert next_prompt(prompts, {"many": 2.0, "one": 1.0}) == 2
    assert next_prompt(prompts, {"many": 2.0, "one": 3.0}) == 1


def test_waiting_makes_a_prompt_rank_as_shorter() -> None:
    long, short = prompt(10_000, waited_s=19.0), prompt(300)
    assert next_prompt([long, short], {}) == 1
    assert next_prompt([long._replace(waited_s=(10_000 - 300) / AGING_TOKENS_PER_S + 0.1), short], {}) == 0


@given(
    tokens=st.integers(CHUNK_TOKENS, 100_000),
    others=st.lists(st.integers(1, 4000), min_size=1, max_size=40),
    tokens_per_s=st.integers(AGING_TOKENS_PER_S, 10 * AGING_TOKENS_PER_S),
)
def test_no_prompt_waits_for_ever_for_shorter_ones(tokens: int, others: list[int], tokens_per_s: int) -> None:
    """Whenever a shorter one is done, the next arrives; those that arrive after tokens / AGING_TOKENS_PER_S rank behind."""
    now_s, arrived_s, computed, i = 0.0, 0.0, 0, 0
    short = others[0]
    while computed < tokens:
        ranked = [prompt(tokens - computed, waited_s=now_s), prompt(short, waited_s=now_s - arrived_s)]
        piece = min(CHUNK_TOKENS, ranked[chosen := next_prompt(ranked, {})].remaining_tokens)
        now_s += piece / tokens_per_s
        if chosen == 0:
            computed += piece
        elif (short := short - piece) == 0:
            i, arrived_s = i + 1, now_s
            short = others[i % len(others)]
        assert now_s <= tokens / AGING_TOKENS_PER_S + (tokens + max(others) + CHUNK_TOKENS) / tokens_per_s


@given(
    num=st.integers(2, 6),
    lengths=st.lists(st.integers(1, 50_000), min_size=6, max_size=6),
    steps=st.integers(20, 100),
)
def test_tenants_with_prompts_have_equal_numbers_of_pieces(num: int, lengths: list[int], steps: int) -> None:
    served_s, counts = dict[str, float](), dict.fromkeys(map(str, range(num)), 0)
    prompts = [prompt(lengths[i], tenant=str(i % num), waited_s=float(i)) for i in range(6)]
    for now in range(1, steps + 1):
        tenant = prompts[next_prompt(prompts, served_s)].tenant
        served_s[tenant] = now
        counts[tenant] += 1
    assert max(counts.values()) - min(counts.values()) <= 1


def shares(piece_s: float, round_s: float, num: int = 1000) -> tuple[float, int]:
    """The part of the time that prefill gets, and the most pieces without a round between them."""
    share, prefill_s, decode_s, in_row, most = TimeShare(), 0.0, 0.0, 0, 0
    for _ in range(num):
        if share.is_prefill_due(can_decode=True):
            share.note_prefill(piece_s, can_decode=True)
            prefill_s, in_row = prefill_s + piece_s, in_row + 1
            most = max(most, in_row)
        else:
            share.note_round(round_s, has_drafts=False)
            decode_s, in_row = decode_s + round_s, 0
    return prefill_s / (prefill_s + decode_s), most


@pytest.mark.parametrize(("piece_s", "round_s"), [(0.038, 0.0066), (0.04, 0.003), (0.04, 0.007), (0.04, 0.0001)])
def test_prefill_gets_its_part_of_the_time_beside_streams(piece_s: float, round_s: float) -> None:
    part, most = shares(piece_s, round_s)
    assert part == pytest.approx(PREFILL_FRAC, abs=0.02)
    assert most == 1


def test_a_round_follows_each_piece_however_long_it_takes() -> None:
    """Then prefill gets less than its part: no gap of a stream holds two pieces."""
    assert shares(0.01, 0.03) == (pytest.approx(0.25), 1)


def test_prefill_has_all_of_the_time_where_nobody_decodes() -> None:
    share = TimeShare()
    share.note_prefill(5.0, can_decode=True)
    assert not share.is_prefill_due(can_decode=True)
    assert share.is_prefill_due(can_decode=False)
    share.note_prefill(5.0, can_decode=False)
    assert share.is_prefill_due(can_decode=True), "what was computed while nobody waited is not owed"


def test_rounds_have_drafts_while_they_fit_into_what_a_piece_leaves() -> None:
    share, part = TimeShare(), (1 - PREFILL_FRAC) / PREFILL_FRAC
    share.note_prefill(1.0, can_decode=True)
    assert share.may_draft
    share.note_round(0.9 * part, has_drafts=True)
    assert share.may_draft
    share.note_round(1.1 * part, has_drafts=True)
    assert not share.may_draft
    share.note_round(0.1 * part, has_drafts=False)
    assert not share.may_draft
    share.note_prefill(1.2, can_decode=True)
    assert share.may_draft, "pieces have become longer"


def test_drafts_that_cost_little_are_made_beside_a_prompt_too() -> None:
    share = TimeShare()
    share.note_prefill(0.1, can_decode=True)
    share.note_round(1.2, has_drafts=True)
    assert not share.may_draft
    share.note_round(1.0, has_drafts=False)
    assert share.may_draft

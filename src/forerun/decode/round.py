"""A round: draft up to k tokens with the model's own head, verify them in one forward of k + 1 rows, emit the accepted and one more.

Several sequences share its passes, each with its own depth and sampling; alone or together, a sequence gets the same tokens. Depth 0 is
plain decoding by the same arithmetic. Drafted rows are never part of the state: kept rows come from target hidden vectors.
Knows nothing of text, stops or requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import mlx.core as mx

from forerun.decode.compiled import MAX_WIDTH, StepTable
from forerun.decode.draft_stats import Round
from forerun.decode.scores import Score, scores
from forerun.decode.verification import Draw, DrawGroup, Drawn, grouped
from forerun.errors import NumericsError
from forerun.grammar.matcher import Matcher
from forerun.kernels.row_span import joined_rows, split_rows
from forerun.sampling.distribution import count_prompt, has_penalty
from forerun.sampling.logprobs import Logprobs
from forerun.sampling.noise import fresh_seed
from forerun.state.cache import Cache, View, lend
from forerun.values import Sampling

PRIME_ROWS = 64


class Rounds:
    """One sequence's rounds. The last appended token is not yet in the cache: cache.length == prompt + appended - 1.

    Draft rows lag behind: `_hidden` and `_tokens` are the target hidden vectors and tokens of rows draft_length, draft_length + 1, ...
    matcher: of the grammar that the answer follows. num_top: number of likeliest tokens in `scores`, None for no scores. scores: of the
    tokens of the last `first` or round.
    before: the sequences and depths of the last round, and so what work it left.
    """

    def __init__(
        self,
        steps: StepTable,
        cache: Cache[Any],
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        num_top: int | None = None,
        matcher: Matcher | None = None,
    ) -> None:
        self._steps, self.cache = steps, cache
        counts = count_prompt(mx.array(list(prompt), dtype=mx.int32), steps.family.vocab) if has_penalty(sampling) else None
        is_coupled = sampling.seed is not None and sampling.temperature > 0
        seed = sampling.seed if sampling.seed is not None else fresh_seed()
        self.draw = Draw(replace(sampling, seed=None), is_coupled, seed, counts, num_top, matcher)
        self.scores: list[Score] = []
        self._hidden = [cache.hidden[None]]
        self._tokens: list[int] = []
        self.last = -1
        self.before: tuple[tuple[int, int], ...] = ()

    def first(self) -> int:
        """The first token, from the last hidden vector of the cache: no forward. Raises NumericsError."""
        group = DrawGroup(0, [self.draw], [self.last], [self.cache.length])
        outcome = group.verify(self._steps.family.head(self.cache.hidden[None]))
        mx.eval(outcome.arrays())
        return self.emitted(outcome.on_host(), 0)[0]

    def append(self, tokens: Sequence[int]) -> None:
        """Append to the answer the first tokens of the last `first` or round."""
        if self.cache.spec.draft_layers:
            self._tokens += tokens
        self.last = tokens[-1]
        if self.draw.matcher is not None:
            for token in tokens:
                self.draw.matcher.accept(token)
        if self.draw.counts is not None:
            self.draw = self.draw._replace(counts=self.draw.counts.extended(mx.array(list(tokens), dtype=mx.int32)))

    def resume(self, cache: Cache[Any]) -> None:
        """Continue in a new cache, the state before the last appended token, draft rows included."""
        self.cache, self._hidden, self.before = cache, [cache.hidden[None]], ()
        self._tokens = [self.last] if cache.spec.draft_layers else []

    def forced(self, limit: int) -> list[int]:
        """At most `limit` tokens that the grammar determines, so that they need no draft head."""
        return self.draw.matcher.forced()[: max(limit, 0)] if self.draw.matcher else []

    def run(self, depth: int, take: Callable[[list[int]], int], forced: Sequence[int] = ()) -> Round:
        """A round of this sequence alone; see `run_round`. Raises NumericsError, and what `take` raises."""
        (result,) = run_round(self._steps, [Part(self, depth, take, forced)])
        if isinstance(result, Exception):
            raise result
        return result

    def complete_draft_rows(self) -> None:
        """Compute the draft rows that lag behind, so that the cache can be stored. No round may follow."""
        if self.num_lagging > 0:
            with lend([self.cache], self._steps.family.numerics) as view:
                _prime(self._steps, [self], [self.num_lagging], view)
        self.cache.draft_length = self.cache.length

    @property
    def num_lagging(self) -> int:
        """Draft rows that are still to be computed."""
        return self.cache.length - self.cache.draft_length

    @property
    def num_primed(self) -> int:
        """Rows that a draft begins with: all whose token is known."""
        return len(self._tokens)

    def lagging(self, rows: int) -> tuple[mx.array, list[int]]:
        """Take hidden vectors [rows, dim] and tokens of the first `rows` draft rows that lag behind."""
        hidden, tokens = joined_rows(self._hidden), self._tokens[:rows]
        self._hidden, self._tokens = [hidden[rows:]], self._tokens[rows:]
        return hidden[:rows], tokens

    def keep(self, hidden: mx.array) -> None:
        """Note the target hidden vectors [rows, dim] of rows that became state: draft rows are made of them."""
        if self.cache.spec.draft_layers:
            self._hidden.append(hidden)

    def emitted(self, drawn: Drawn, index: int) -> list[int]:
        """The accepted drafts and the next token. Sets their scores. Raises NumericsError, and what its grammar raised."""
        if index in drawn.errors:
            raise drawn.errors[index]
        if not drawn.is_finite[index]:
            raise NumericsError("the model produced logits that are not numbers", hint="the weights may be damaged")
        tokens = drawn.tokens[index]
        if drawn.logprobs is not None:
            rows = slice(index * drawn.rows, index * drawn.rows + len(tokens))
            self.scores = scores(Logprobs(*(x[rows] for x in drawn.logprobs)))
        return tokens


class Part(NamedTuple):
    """A sequence's part in a round. `take` gets the emitted tokens and returns how many rows become state: at most as many as it took.

    forced: drafts that a grammar determines, `depth` of them, () for drafts of the head.
    """

    rounds: Rounds
    depth: int
    take: Callable[[list[int]], int]
    forced: Sequence[int] = ()

    @property
    def head_depth(self) -> int:
        """How many drafts the head makes."""
        return 0 if self.forced else self.depth


def run_round(steps: StepTable, parts: Sequence[Part]) -> list[Round | Exception]:
    """One round of all parts: for each its result, or the exception that ends this sequence alone, whose cache is then broken.

    Raises what a pass raises; then all caches are broken.
    """
    start_s, order = time.perf_counter(), grouped([p.rounds.draw for p in parts], [(p.depth, bool(p.forced)) for p in parts])
    members = [[parts[i] for i in group] for group in order]
    results = dict(zip([i for group in order for i in group], _run(steps, members), strict=True))
    company = tuple((id(p.rounds), p.head_depth) for p in parts)
    is_measure = all(p.rounds.before == company for p in parts)
    for part in parts:
        part.rounds.before = company
    seconds = time.perf_counter() - start_s if is_measure else None
    return [
        tokens if isinstance(tokens, Exception) else Round(tokens, part.depth, len(tokens) - 1, seconds, bool(part.forced))
        for part, tokens in zip(parts, (results[i] for i in range(len(parts))), strict=True)
    ]


def _run(steps: StepTable, members: Sequence[Sequence[Part]]) -> list[list[int] | Exception]:
    """The emitted tokens of each part, or what ended it, in the order of these groups."""
    parts, caches = [p for group in members for p in group], [p.rounds.cache for group in members for p in group]
    groups = [_draw_group(group) for group in members]
    with lend(caches, steps.family.numerics) as view:
        _draft(steps, members, groups, view)
        spans = [p.depth + 1 for p in parts]
        hidden = steps.forward(joined_rows([g.rows() for g in groups]), caches, spans, view)
        logits = split_rows(steps.family.head(hidden), [len(g.draws) * (g.depth + 1) for g in groups])
        outcomes = [group.verify(rows) for group, rows in zip(groups, logits, strict=True)]
        mx.eval([outcome.arrays() for outcome in outcomes])
        drawn = [outcome.on_host() for outcome in outcomes]
        results = [_take(p, d, i) for group, d in zip(members, drawn, strict=True) for i, p in enumerate(group)]
        kept = [rows for _, rows in results]
        view.keep(kept, hidden)
        for part, rows, new in zip(parts, kept, split_rows(hidden, spans), strict=True):
            part.rounds.keep(new[:rows])
        # The next draft begins with the last token's row; after a stop string, tokens may have no row at all.
        lagging = [p.rounds.num_lagging if p.rounds.num_lagging >= PRIME_ROWS else 0 for p in parts]
        if any(lagging):
            _prime(steps, [p.rounds for p in parts], lagging, view)
    for part, (tokens, _) in zip(parts, results, strict=True):
        if isinstance(tokens, Exception):
            part.rounds.cache.drop()
    return [tokens for tokens, _ in results]


def _draw_group(parts: Sequence[Part]) -> DrawGroup:
    rounds = [p.rounds for p in parts]
    last, positions, forced = [r.last for r in rounds], [r.cache.length + 1 for r in rounds], [list(p.forced) for p in parts if p.forced]
    return DrawGroup(parts[0].depth, [r.draw for r in rounds], last, positions, forced)


def _take(part: Part, drawn: Drawn, index: int) -> tuple[list[int] | Exception, int]:
    """The part's tokens, and how many of its rows become state."""
    try:
        tokens = part.rounds.emitted(drawn, index)
        return tokens, part.take(tokens)
    except Exception as error:  # noqa: BLE001 - ends this sequence alone
        return error, 0


def _draft(steps: StepTable, members: Sequence[Sequence[Part]], groups: Sequence[DrawGroup], view: View) -> None:
    """Draft in lockstep by depth: sequences with fewer drafts drop out, those with forced ones take no part."""
    rounds = [p.rounds for group in members for p in group]
    depths = [p.head_depth for group in members for p in group]
    of_group = [group[0].head_depth for group in members]
    if not any(depths):
        return
    counts = [r.num_primed if depth else 0 for r, depth in zip(rounds, depths, strict=True)]
    hidden = _last_rows(_prime(steps, rounds, counts, view), counts)
    for drafted in range(1, max(depths) + 1):
        active = [g for g, depth in zip(groups, of_group, strict=True) if depth >= drafted]
        logits = split_rows(steps.family.head(hidden), [len(g.draws) for g in active])
        tokens = [group.draft(rows) for group, rows in zip(active, logits, strict=True)]
        if drafted < max(depths):
            spans = [int(depth > drafted) for depth in depths]
            going = [g.depth > drafted for g in active]
            parts = split_rows(hidden, [len(g.draws) for g in active])
            rows, ids = ([x for x, goes in zip(each, going, strict=True) if goes] for each in (parts, tokens))
            hidden = steps.draft(joined_rows(rows), joined_rows(ids), [r.cache for r in rounds], spans, view)
    view.keep_draft([0] * len(rounds))


def _prime(steps: StepTable, rounds: Sequence[Rounds], counts: Sequence[int], view: View) -> mx.array:
    """Compute and keep the first counts[j] draft rows that lag behind. Returns the hidden vectors [rows, dim] of the draft head."""
    hidden, tokens = zip(*(r.lagging(n) for r, n in zip(rounds, counts, strict=True) if n), strict=True)
    ids = mx.array([token for own in tokens for token in own], dtype=mx.int32)
    if max(counts) > MAX_WIDTH:  # as in prefill, which is no step
        drafted = steps.family.draft(joined_rows(hidden), ids, counts, view)
    else:
        drafted = steps.draft(joined_rows(hidden), ids, [r.cache for r in rounds], counts, view)
    view.keep_draft(counts)
    return drafted


def _last_rows(hidden: mx.array, counts: Sequence[int]) -> mx.array:
    """The last row of each sequence that has any."""
    return joined_rows([rows[-1:] for rows in split_rows(hidden, [n for n in counts if n])])

"""The live state of one sequence, and lending it to a forward pass. The layout is part of a cache's type.

Knows nothing of models (a family declares the spec and calls the View) nor of storage (see records.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

import mlx.core as mx

from forerun.kernels.cached_attention import attention
from forerun.kernels.numerics import Numerics
from forerun.kernels.row_span import RowSpan, joined_rows, split_rows
from forerun.kernels.states import Arrays, StateRef, States, joined
from forerun.state.layout import L
from forerun.state.paged import PoolPass
from forerun.state.spec import AttentionSpec, StateSpec
from forerun.state.store import Arena, Store, constants_of

Rule = Callable[[States, Arrays, Sequence[int]], tuple[mx.array, States]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fixed-size state after `position` tokens, live. recurrent: one tuple of arrays per recurrent layer."""

    position: int
    recurrent: tuple[Arrays, ...]
    hidden: mx.array

    def arrays(self) -> list[mx.array]:
        """All arrays, in the order in which a snapshot record stores them."""
        return [a for layer in self.recurrent for a in layer] + [self.hidden]

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes for a in self.arrays())


class PassResult(NamedTuple):
    """hidden [rows, dim]; per recurrent layer its arrays after all rows (`stored_form`), and its rule's inputs; the next pass's buffers."""

    hidden: mx.array
    after: list[Arrays]
    rule_inputs: list[Arrays]
    buffers: list[mx.array]


class CompiledFunction(Protocol):
    """A compiled pass; see trace.CompiledPass."""

    rules: list[Rule]

    def __call__(
        self,
        inputs: Sequence[mx.array],
        starts: Sequence[int],
        recurrent: Sequence[Arrays],
        buffers: list[mx.array],
        constants: list[mx.array],
    ) -> PassResult: ...


class Cache(Generic[L]):
    """The whole state of one sequence after `length` tokens.

    Rows of the store at or beyond `length` are scratch. `draft_length` rows of the draft (MTP) layers come from target hidden vectors;
    within a turn it may lag behind `length` or be one ahead of it; in a stored state, and without draft layers, it equals `length`.
    `hidden` [dim]: of the last token, after the final norm. states: of each recurrent layer, one of those that a pass made.
    """

    def __init__(self, arena: Arena, layout: L, store: Store, snapshot: Snapshot) -> None:
        self.arena, self.spec = arena, arena.spec
        self.layout: L = layout
        self.store = store
        self.length = self.draft_length = snapshot.position
        self.states: list[StateRef] = []
        self.recurrent, self.hidden = list(snapshot.recurrent), snapshot.hidden
        self.is_lent = self._has_failed = False

    @property
    def recurrent(self) -> list[Arrays]:
        """The arrays of each recurrent layer."""
        return [states.of(j) for states, j in self.states]

    @recurrent.setter
    def recurrent(self, arrays: Sequence[Arrays]) -> None:
        self.states = [(States([each]), 0) for each in arrays]

    def own(self) -> None:
        """Hold no arrays of other sequences, with which a shared pass made its own. Evaluated, since a copy that is due holds them too."""
        self.recurrent = [tuple(mx.contiguous(array) for array in arrays) for arrays in self.recurrent]
        mx.eval(self.arrays())

    @property
    def is_broken(self) -> bool:
        """Whether the state is gone: its own pass failed, or that of another cache whose memory it shares."""
        return self._has_failed or self.store.is_lost

    def drop(self) -> None:
        """The state is gone, or another cache's from now on."""
        self._has_failed = True

    def snapshot(self) -> Snapshot:
        """The fixed-size state at the current length. No copy: recurrent arrays are replaced, never written in place."""
        return Snapshot(self.length, tuple(self.recurrent), self.hidden)

    def truncate(self, snapshot: Snapshot) -> None:
        """Drop the state after an earlier snapshot of this same cache. A fork of it stays as it is."""
        self.store.own(snapshot.position)
        self.length, self.draft_length = snapshot.position, min(self.draft_length, snapshot.position)
        self.recurrent, self.hidden = list(snapshot.recurrent), snapshot.hidden

    def arrays(self) -> list[mx.array]:
        return self.store.buffers + self.snapshot().arrays()

    @property
    def num_bytes(self) -> int:
        return self.store.num_bytes + self.snapshot().num_bytes


class View:
    """A family's access to the caches of one forward pass. Rows of all sequences lie end to end; sequence j has spans[j] of them.

    Call `begin` (or `begin_draft`), the layers in order, then `snapshot` and `keep` (or `keep_draft`). Rows not kept never become state.
    """

    def __init__(self, caches: Sequence[Cache[Any]], numerics: Numerics) -> None:
        self._caches, self.numerics = caches, numerics
        self._scratch = [0] * len(caches)
        self._spans: Sequence[int] = ()
        self._starts: list[int] = []  # arrays while a pass is traced
        self._row_spans: list[RowSpan] = []
        self._pool_pass: PoolPass | None = None
        self._first = 0
        self._is_draft = False
        self._inputs: dict[int, tuple[Rule, Arrays]] = {}
        self._after: dict[int, States] = {}
        self._slots = _slots(caches[0].spec)

    def begin(self, spans: Sequence[int]) -> mx.array:
        """Start a pass of the target model. Returns the positions [rows] int32 of the new rows."""
        return self._begin(spans, [c.length for c in self._caches], 0)

    def begin_draft(self, spans: Sequence[int]) -> mx.array:
        """Start a pass of the draft layers, after the rows kept and drafted so far. Returns positions like `begin`."""
        starts = [c.draft_length + s for c, s in zip(self._caches, self._scratch, strict=True)]
        self._scratch = [s + n for s, n in zip(self._scratch, spans, strict=True)]
        return self._begin(spans, starts, 1)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Write k and v [rows, kv_heads, dim] of `layer`; then each row of q [rows, heads, dim] attends to all rows up to its own.

        Layers are numbered target first, then draft. Draft layers mask position 0, which has no row. Returns [rows, heads, dim].
        """
        slot = self._slots[layer]
        if self._pool_pass:
            return self._pool_pass.attend(slot, q, k, v, self._first)
        parts = [split_rows(x, self._spans) for x in (k, v)]
        active = [j for j, n in enumerate(self._spans) if n]
        stores, spans = [self._caches[j].store for j in active], [self._row_spans[j] for j in active]
        for j, store, span in zip(active, stores, spans, strict=True):
            store.write(slot, span, parts[0][j], parts[1][j])
        return attention(q, [store.stored(slot) for store in stores], spans, self._first, self.numerics)

    def recur(self, layer: int, rule: Rule, inputs: Arrays) -> mx.array:
        """Run `rule(states, inputs, spans) -> (output, states)` over rows of the inputs [rows, ...], spans[j] of them after states.of(j).

        The rule must have the prefix property: a state after n rows depends on these rows alone. Returns the outputs [rows, ...].
        """
        slot = self._slots[layer]
        self._inputs[slot] = rule, inputs
        y, self._after[slot] = rule(joined([c.states[slot] for c in self._caches]), inputs, self._spans)
        return y

    def run(self, compiled: CompiledFunction, spans: Sequence[int], *inputs: mx.array, is_draft: bool) -> mx.array:
        """Run a compiled pass over the one lent cache, or several in one pool, instead of `begin` and the layers. Returns its result."""
        (self.begin_draft if is_draft else self.begin)(spans)
        store, constants = self._caches[0].store, constants_of([c.store for c in self._caches])
        buffers, store.buffers = store.buffers, []
        self._pool_pass = None  # it holds the buffers too
        try:
            before = [joined(refs) for refs in zip(*(c.states for c in self._caches), strict=True)]
            result = compiled(inputs, self._starts, [stored_form(states) for states in before], buffers, constants)
        except BaseException:
            store.buffers = buffers
            raise
        store.buffers = result.buffers
        self._after = {slot: restored_form(arrays, len(spans)) for slot, arrays in enumerate(result.after)}
        self._inputs = dict(enumerate(zip(compiled.rules, result.rule_inputs, strict=True)))
        return result.hidden

    def recurrence(self) -> tuple[list[Arrays], list[Arrays], list[Rule]]:
        """For each recurrent layer: its arrays after all rows (see `stored_form`), the inputs of its rule, and the rule."""
        slots = sorted(self._after)
        return [stored_form(self._after[s]) for s in slots], [self._inputs[s][1] for s in slots], [self._inputs[s][0] for s in slots]

    def snapshot(self, j: int, position: int, hidden: mx.array) -> Snapshot:
        """The state of sequence j after `position` tokens, within the new rows of this pass. hidden [rows, dim]: what the pass returned.

        Call it before `keep`. It replays the recurrence over the rows up to `position`.
        """
        rows = position - self._starts[j]
        if not 0 < rows <= self._spans[j]:
            raise ValueError(f"position {position} is not inside the new rows {self._starts[j]}..{self._starts[j] + self._spans[j]}")
        (refs,) = self._states([j], [rows])
        return Snapshot(position, tuple(states.of(i) for states, i in refs), self._hidden_at(j, rows, hidden))

    def keep(self, counts: Sequence[int], hidden: mx.array) -> None:
        """Make the first counts[j] new rows of each sequence part of its state. hidden [rows, dim]: what the pass returned."""
        kept = [j for j, n in enumerate(counts) if n]
        for j, state in zip(kept, self._states(kept, [counts[j] for j in kept]), strict=True):
            cache = self._caches[j]
            cache.length, cache.states, cache.hidden = self._starts[j] + counts[j], state, self._hidden_at(j, counts[j], hidden)
            cache.draft_length = cache.draft_length if cache.spec.draft_layers else cache.length
        self._inputs, self._after = {}, {}

    def keep_draft(self, counts: Sequence[int]) -> None:
        """Keep the first counts[j] draft rows since the last `keep_draft`, made of target hidden vectors; the others are scratch."""
        for j, n in enumerate(counts):
            self._caches[j].draft_length += n
        self._scratch = [0] * len(self._caches)

    def _begin(self, spans: Sequence[int], starts: list[int], first: int) -> mx.array:
        self._spans, self._starts, self._first, self._is_draft = spans, starts, first, first > 0
        for cache, start, n in zip(self._caches, starts, spans, strict=True):
            if isinstance(start, int):
                cache.store.reserve(start + n)
        self._row_spans = [RowSpan(start, mx.arange(n, dtype=mx.int32) + start) for start, n in zip(starts, spans, strict=True)]
        positions = joined_rows([span.positions for span in self._row_spans])
        self._pool_pass = PoolPass.of([c.store for c in self._caches], spans, positions)
        return positions

    def _hidden_at(self, j: int, rows: int, hidden: mx.array) -> mx.array:
        """The hidden vector [dim] of sequence j after its first `rows` new rows; hidden [rows, dim]."""
        return mx.contiguous(hidden[sum(self._spans[:j]) + rows - 1])

    def _states(self, sequences: Sequence[int], counts: Sequence[int]) -> list[list[StateRef]]:
        """Recurrent state of these sequences after their first counts[i] new rows: that of the pass, or replayed where it ran further."""
        if self._is_draft:
            raise RuntimeError("the last pass was one of the draft layers: it has no state for a snapshot")
        states: list[list[StateRef]] = [[(self._after[slot], j) for slot in sorted(self._after)] for j in sequences]
        cut = [i for i, (j, n) in enumerate(zip(sequences, counts, strict=True)) if n < self._spans[j]]
        if cut:
            rows, spans = self._rows([sequences[i] for i in cut], [counts[i] for i in cut]), [counts[i] for i in cut]
            for layer, (slot, (rule, inputs)) in enumerate(sorted(self._inputs.items())):
                before = joined([self._caches[sequences[i]].states[slot] for i in cut])
                after = rule(before, tuple(x[rows] for x in inputs), spans)[1]
                for k, i in enumerate(cut):
                    states[i][layer] = after, k
        return states

    def _rows(self, sequences: Sequence[int], counts: Sequence[int]) -> slice | mx.array:
        """Where the first counts[i] new rows of these sequences lie."""
        starts = [sum(self._spans[:j]) for j in sequences]
        if len(starts) == 1:
            return slice(starts[0], starts[0] + counts[0])
        return mx.array([start + row for start, n in zip(starts, counts, strict=True) for row in range(n)], dtype=mx.int32)


def stored_form(states: States) -> Arrays:
    """The arrays of one sequence, or stacked ones of several."""
    return states.of(0) if len(states) == 1 else states.stacked()


def restored_form(arrays: Arrays, num_sequences: int) -> States:
    """The inverse of `stored_form`."""
    return States([arrays]) if num_sequences == 1 else States(stacked=arrays)


@contextmanager
def lend(caches: Sequence[Cache[Any]], numerics: Numerics) -> Iterator[View]:
    """Lend `caches` exclusively to a pass. If the pass fails, they are broken and must be dropped."""
    for cache in caches:
        if cache.is_lent or cache.is_broken:
            raise RuntimeError("the cache is already lent" if cache.is_lent else "the cache was broken by a failed step")
    if len({id(cache) for cache in caches}) < len(caches):
        raise RuntimeError("the cache is already lent, in this same call")
    for cache in caches:
        cache.is_lent = True
    try:
        yield View(caches, numerics)
    except BaseException:
        _drop(caches)
        raise
    finally:
        for cache in caches:
            cache.is_lent = False


def _drop(caches: Sequence[Cache[Any]]) -> None:
    for cache in caches:
        cache.drop()
    for cache in caches:
        cache.store.recover()


def _slots(spec: StateSpec) -> list[int]:
    """The index of each layer (target, then draft) among the layers of its kind, attention or recurrent."""
    slots, counts = [], {True: 0, False: 0}
    for layer in spec.layers + spec.draft_layers:
        is_attention = isinstance(layer, AttentionSpec)
        slots.append(counts[is_attention])
        counts[is_attention] += 1
    return slots

"""The sequences that run together: each tick computes a piece of one prompt, or one round for all that decode.

Runs on the thread that owns MLX. Knows no queue and no socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forerun.decode.draft_stats import MAX_DEPTH, Round
from forerun.decode.generate import decode
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine.admission import growth_bytes
from forerun.engine.model import Model
from forerun.engine.request import Request
from forerun.engine.scheduler import Prompt, TimeShare, next_prompt
from forerun.engine.sequence import Phase, RunningSequence
from forerun.errors import OutOfMemoryError
from forerun.log import request_id
from forerun.text.partial_match import num_common

MAX_RECOVERIES = 1
WRITE_WAIT_S = 5.0


class Batch:
    """on_end: called with each sequence that is to end, and the error that ends it, None if it is finished or cancelled."""

    def __init__(self, model: Model, on_end: Callable[[RunningSequence, Exception | None], None]) -> None:
        self.model, self._on_end = model, on_end
        self.running: list[RunningSequence] = []
        self._share, self._served_s = TimeShare(), dict[str, float]()
        self._shared: dict[tuple[Request, RunningSequence], int] = {}  # tokens that a waiting request and a running sequence have in common

    @property
    def num_free(self) -> int:
        """How many more may run, memory permitting."""
        return self.model.max_running - len(self.running)

    def is_prefix_coming(self, request: Request) -> bool:
        """Whether a prompt that is being prefilled will soon hold a beginning that the request shares: then it waits, and forks.

        That prefill makes a snapshot where the two diverge.
        """
        return any(self._is_prefilling_prefix(s, request) for s in self._in(Phase.PREFILL))

    def _is_prefilling_prefix(self, sequence: RunningSequence, request: Request) -> bool:
        job, other = request.job, sequence.request.job
        if not (job.uses_bank and other.uses_bank and job.tenant == other.tenant) or sequence.restored.running.is_removed:
            return False
        key = request, sequence
        if key not in self._shared:
            self._shared[key] = num_common(request.prompt.tokens, sequence.request.prompt.tokens)
        shared = self._shared[key]
        if shared <= sequence.cache.length or shared - sequence.restored.reused_tokens < CHUNK_TOKENS:
            return False
        sequence.snapshot_positions.add(shared)
        return True

    def is_write_coming(self, request: Request) -> bool:
        """Whether the disk will soon have more of the request's prompt than could be restored now: then it waits, WRITE_WAIT_S at most."""
        job = request.job
        if not (job.uses_bank and self.model.bank.is_write_due(request.prompt.tokens, tenant=job.tenant, session=job.session)):
            return False
        now_s = time.monotonic()
        request.write_limit_s = request.write_limit_s or now_s + WRITE_WAIT_S
        return now_s < request.write_limit_s

    def admit(self, request: Request) -> bool:
        """Restore and run the request. False: memory that running ones hold or are promised must be free first.

        Raises OutOfMemoryError: it does not fit alone; what MLX raises.
        """
        spec = self.model.family.spec
        reserved_bytes = sum(growth_bytes(spec, s.context_tokens, s.num_bytes) for s in self.running)
        try:
            self.running.append(RunningSequence(self.model, request, self._is_pausing, reserved_bytes))
        except OutOfMemoryError:
            if not self.running:
                raise
            return False
        return True

    @property
    def is_stream_waiting(self) -> bool:
        """Whether a round is due, after a piece of prefill: nothing else may come between."""
        return bool(self._in(Phase.DECODE)) and not self._share.is_prefill_due(can_decode=True)

    def tick(self) -> None:
        """Run what is due. Ends the sequences that are finished, cancelled or failed."""
        start_s, served = time.monotonic(), self._run_due()
        seconds = time.monotonic() - start_s
        for sequence in self.running:
            if sequence not in served:
                sequence.others_s += seconds
        for sequence in [s for s in self.running if s.phase is Phase.END or s.is_cancelled]:
            self._end(sequence, None)

    def _run_due(self) -> Sequence[RunningSequence]:
        """A piece of a prompt, or a round. Returns whom it served."""
        prompts, decoding = self._in(Phase.PREFILL), self._in(Phase.DECODE)
        if prompts and self._share.is_prefill_due(can_decode=bool(decoding)):
            return self._prefill(prompts, can_decode=bool(decoding))
        may_draft = not prompts or self._share.may_draft
        return self._decode(decoding, MAX_DEPTH if may_draft else 0) if decoding else ()

    def _prefill(self, prompts: Sequence[RunningSequence], *, can_decode: bool) -> Sequence[RunningSequence]:
        now_s = time.monotonic()
        ranked = [Prompt(s.request.job.tenant, s.remaining_tokens, now_s - s.request.arrived_s, s.cache.is_lent) for s in prompts]
        sequence = prompts[next_prompt(ranked, self._served_s)]
        self._served_s[sequence.request.job.tenant] = now_s
        self._guarded(sequence, sequence.prefill)
        self._share.note_prefill(time.monotonic() - now_s, can_decode=can_decode)
        return [sequence]

    def _decode(self, decoding: Sequence[RunningSequence], max_depth: int) -> Sequence[RunningSequence]:
        """One round of all, with at most so many drafts; of one alone that a failed pass has made suspect."""
        suspect = next((s for s in decoding if s.is_suspect), None)
        members = [suspect] if suspect else decoding
        start_s, before = time.monotonic(), self.model.steps.counts()
        try:
            results = decode([s.generation for s in members if s.generation], max_depth)
        except Exception as error:  # noqa: BLE001 - whose fault it was shows when each runs alone
            self._recover(members, error)
            return members
        steps, drafted = self.model.steps.counts() - before, sum(r.drafted for r in results if isinstance(r, Round))
        for sequence, result in zip(members, results, strict=True):
            sequence.is_suspect = False
            sequence.passes.add(steps, len(members), drafted + len(members))
            if isinstance(result, Exception):
                self._end(sequence, result)
            else:
                self._guarded(sequence, sequence.posted)
        self._share.note_round(time.monotonic() - start_s, has_drafts=drafted > 0)
        return members

    def _recover(self, members: Sequence[RunningSequence], error: Exception) -> None:
        """After a failed pass: a sequence that ran alone ends, and no other is blamed; of several each is computed again, once until then,
        and decodes alone first.
        """
        for sequence in members:
            if len(members) == 1 or sequence.num_recoveries >= MAX_RECOVERIES:
                self._end(sequence, error)
            else:
                sequence.is_suspect = True
                self._guarded(sequence, sequence.recover)
        if len(members) == 1:
            for other in self.running:
                other.num_recoveries = 0

    def _guarded(self, sequence: RunningSequence, work: Callable[[], None]) -> None:
        """Run one sequence's work; an exception ends this sequence alone."""
        request_id.set(sequence.request.job.id)
        try:
            work()
        except Exception as error:  # noqa: BLE001
            self._end(sequence, error)
        finally:
            request_id.set("")

    def _end(self, sequence: RunningSequence, error: Exception | None) -> None:
        sequence.leave()
        self._on_end(sequence, error)
        self.running.remove(sequence)  # last: until then it counts as running
        self._shared.clear()

    def _in(self, phase: Phase) -> list[RunningSequence]:
        return [s for s in self.running if s.phase is phase]

    def _is_pausing(self) -> bool:
        """Whether a chunk of prefill is computed in pieces: others decode."""
        return any(s.phase is Phase.DECODE for s in self.running)

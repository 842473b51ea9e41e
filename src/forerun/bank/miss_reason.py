"""Why a prompt's state was not restored further: what failed on the way, and what the tiers and the live conversations hold, held, or hold
under another identity. Changes nothing.

Knows tokens, no text: engine/miss.py finds the message in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.bank.live import LiveConversation, LiveConversations
from forerun.bank.match import PrefixChain, PrefixMatch, RestorePlan, match
from forerun.bank.tier.base import Tier
from forerun.bank.tier.history import LostRecord
from forerun.bank.tier.index import Index
from forerun.errors import BankError, DamagedRecordError
from forerun.state.record import Identity, PrefixHasher
from forerun.values import MissKind

_LOOK_UPS = 3
SHOWN_TOKENS = 16
_IDENTITIES = 16  # of a tenant, the latest, under which a prompt is looked for


@dataclass(frozen=True, slots=True)
class MissReason:
    """kind: "" if nothing was missed. text: for people. shared_tokens: length of the longest prefix that the prompt shares with a stored
    conversation. stored: that conversation's first tokens after it; () if it ends there.
    """

    kind: MissKind
    text: str
    shared_tokens: int
    stored: tuple[int, ...]


class RestoreProblems:
    """What failed during one restore. failed_snapshots (keys), failed_live (ids): not to be tried again for this prompt."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.failed_snapshots: set[str] = set()
        self.failed_live: set[int] = set()
        self.kind: MissKind = ""
        self._vanished = 0

    def add(self, error: Exception, plan: RestorePlan | None) -> None:
        """Note an error, of this plan if it was one plan's."""
        if isinstance(error, KeyError):  # evicted, or replaced by a longer one, since the look-up: look up again, a few times
            self._vanished += 1
            if self._vanished < _LOOK_UPS:
                return
        else:
            is_damaged = isinstance(error, DamagedRecordError)
            self.kind = "damaged" if is_damaged else self.kind or "failed"
            self.text.append(f"{'set aside' if is_damaged else 'the bank failed'}: {error}")
        if plan is not None:
            self.failed_snapshots.add(plan.snapshot.key)

    def skip_live(self, live: LiveConversation, error: Exception) -> None:
        """Note that a live conversation could not be copied."""
        self.kind = self.kind or "failed"
        self.text.append(f"a live conversation with the same prefix could not be copied: {error or type(error).__name__}")
        self.failed_live.add(id(live))


def miss_reason(
    problems: RestoreProblems, reused: int, shared: int, following: tuple[int, ...], lost: LostRecord | None, other: tuple[str, ...]
) -> MissReason:
    """Why only `reused` tokens were reused. shared: length of the longest prefix that the prompt shares with a stored conversation, which
    continues with `following`. lost: the prompt's deepest snapshot that is gone. other: fields that differ in the identity under which more
    of the prompt is stored.
    """
    kind, text = problems.kind, list(problems.text)
    if lost is not None and lost.position > reused:
        kind = kind or lost.kind
        text.append(f"the state at {lost.position:,} tokens is not here, {lost.kind}: {lost.reason}")
    if other:
        kind = kind or "identity"
        found = "more of it" if shared else "it"
        text.append(f"{found} is stored under another identity: {' and '.join(other)} differ{'s' * (len(other) == 1)}")
    if following:
        kind = kind or "differs"
        text.append(f"the nearest stored conversation diverges after {shared:,} token{'' if shared == 1 else 's'}")
    if reused < shared:
        if not text:
            text.append(f"the prompt is stored up to token {shared:,}")
        kind = kind or "no snapshot"
        text.append(f"the last snapshot before that is at {reused:,}" if reused else "there is no snapshot before that")
    if not text and shared == 0:
        kind, text = "new", ["no stored conversation begins like this prompt"]
    return MissReason(kind, "; ".join(text), shared, following)


class MissExplainer:
    """Explains the misses of a bank with these tiers, conversations in RAM, secret and identity. losses: noted besides those of tiers."""

    def __init__(self, tiers: Sequence[Tier], losses: Index, live: Sequence[LiveConversations], secret: bytes, identity: Identity) -> None:
        self._tiers, self._live, self._secret, self._identity = tiers, live, secret, identity
        self._losses = (losses, *(tier.index for tier in tiers))

    def explain(self, problems: RestoreProblems, reused: int, found: PrefixMatch | None, chain: PrefixChain, tenant: str) -> MissReason:
        """Why only `reused` tokens were reused. A failure of the index is one more reason."""
        try:
            shared, following = self._nearest(found, chain)
            return miss_reason(problems, reused, shared, following, self._lost(chain), self._other_identity(chain, tenant, shared))
        except BankError as error:
            problems.add(error, None)
            return miss_reason(problems, reused, reused, (), None, ())

    def _nearest(self, found: PrefixMatch | None, chain: PrefixChain) -> tuple[int, tuple[int, ...]]:
        """Length of the longest prefix that the prompt shares with any conversation, and how that one continues."""
        in_ram = [live.nearest(chain) for live in self._live]
        shared, following = max(*in_ram, found.nearest() if found else (0, ()), key=lambda x: x[0])
        return shared, following[:SHOWN_TOKENS] if shared < len(chain.tokens) else ()

    def _lost(self, chain: PrefixChain) -> LostRecord | None:
        """The prompt's deepest record that was noted as lost."""
        for depth in reversed(range(len(chain.nodes))):
            for index in self._losses:
                if lost := index.lost(chain.nodes[depth], chain.rest(depth)):
                    return lost
        return None

    def _other_identity(self, chain: PrefixChain, tenant: str, shared: int) -> tuple[str, ...]:
        """Fields that differ in the identity under which the longest prefix of this prompt is stored, the latest of equals; () if none is
        longer than `shared`.
        """
        noted = (Identity(**fields) for tier in self._tiers for fields in tier.index.identities(tenant, _IDENTITIES))
        lengths = {identity: self._stored_under(identity, chain, tenant) for identity in noted if identity != self._identity}
        nearest = max(lengths, key=lambda identity: lengths[identity], default=self._identity)
        return nearest.differing(self._identity) if lengths.get(nearest, 0) > shared else ()

    def _stored_under(self, identity: Identity, chain: PrefixChain, tenant: str) -> int:
        """Length of the longest prefix of the prompt that is stored under this identity."""
        hasher = PrefixHasher(self._secret, tenant, identity)
        return match(self._tiers, hasher, PrefixChain.of(hasher, chain.tokens)).nearest()[0]

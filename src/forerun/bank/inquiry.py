"""Finds out why a prompt did not get more of its state back: asks the tiers and the live conversations what they have, had, or hold under
another identity. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bank.history import Lost
from forerun.bank.lives import Lives
from forerun.bank.match import Match, Trail, match
from forerun.bank.tier import Tier
from forerun.bank.why import TOLD_TOKENS, Near, Problems, Why, why
from forerun.errors import BankError
from forerun.state.record import Chain, Identity

_IDENTITIES = 4  # of a tenant, the last ones, under which a prompt that is not known is looked for


class Inquiry:
    """Asks on behalf of a bank with these tiers, live conversations, secret and identity."""

    def __init__(self, tiers: Sequence[Tier], lives: Lives, secret: bytes, identity: Identity) -> None:
        self._tiers, self._lives, self._secret, self._identity = tiers, lives, secret, identity

    def why(self, problems: Problems, reused: int, found: Match | None, trail: Trail, tenant: str) -> Why:
        """Why no more than `reused` tokens were. An index that fails now is one more reason."""
        try:
            near, lost = self._near(found, trail), self._lost(trail)
            other = self._other_identity(trail, tenant) if reused == 0 else ()
        except BankError as error:
            problems.add(error, None)
            return why(problems, reused, Near(reused, ()), None, ())
        return why(problems, reused, near, lost, other)

    def _near(self, found: Match | None, trail: Trail) -> Near:
        shared, following = max(self._lives.nearest(trail), found.nearest() if found else (0, ()), key=lambda x: x[0])
        return Near(shared, following[:TOLD_TOKENS] if shared < len(trail.tokens) else ())

    def _lost(self, trail: Trail) -> Lost | None:
        """The deepest mark of the prompt that was here, or should be, and is not."""
        for depth in reversed(range(len(trail.nodes))):
            for tier in self._tiers:
                if lost := tier.index.lost(trail.nodes[depth], trail.rest(depth)):
                    return lost
        return None

    def _other_identity(self, trail: Trail, tenant: str) -> tuple[str, ...]:
        """In what the identity differs under which this prompt's beginning is stored; nothing if it is not."""
        for fields in (known for tier in self._tiers for known in tier.index.identities(tenant, _IDENTITIES)):
            identity = Identity(**fields)
            chain = Chain(self._secret, tenant, identity)
            if identity != self._identity and match(self._tiers, chain, Trail.of(chain, trail.tokens)).nearest()[0]:
                return identity.differing(self._identity)
        return ()

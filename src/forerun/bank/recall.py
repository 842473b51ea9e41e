"""How a stored conversation goes on where a prompt leaves it, in the token ids that the model sampled. Reads an index, no payloads.

So what was sampled is known again after a restart: see engine/echo.py. May be called from any thread.
"""

from __future__ import annotations

from forerun.bank.match import Trail, match
from forerun.bank.tier import Tier
from forerun.state.record import SEGMENT_TOKENS, Chain

_MOST_BLOCKS = 8  # that an answer may span


def recall(tier: Tier, chain: Chain, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the prompt shares with the stored conversation which begins like it for longest, and the stored ones after these:
    up to the end of the conversation, or of _MOST_BLOCKS blocks. Nothing where the prompt does not leave it. Raises BankError.
    """
    trail = Trail.of(chain, tokens)
    shared, following = match([tier], chain, trail).nearest()
    if shared == len(tokens) or not following:
        return tokens[:shared], ()
    block = (*tokens[shared - shared % SEGMENT_TOKENS : shared], *following)
    node, stored = trail.nodes[shared // SEGMENT_TOKENS], list(following)
    for _ in range(_MOST_BLOCKS):
        if len(block) < SEGMENT_TOKENS:
            break
        node = chain.child(node, block)
        block = tier.index.latest_segment(node)
        stored.extend(block)
    return tokens[:shared], tuple(stored)

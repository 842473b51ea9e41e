"""A toy model with exact distributions: a few tokens, random logits for each prefix, sampling rules in float64, and the distribution of
the tokens of a draw or a round, by enumerating drafts and locating each step of the decision over its uniform number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import mlx.core as mx
import numpy as np

from forerun.sampling.distribution import Counts, count_prompt, distribution
from forerun.sampling.draw import draw
from forerun.sampling.verify import verify
from forerun.values import NEUTRAL, Sampling

FILTERS = {
    "neutral": NEUTRAL,
    "greedy": replace(NEUTRAL, temperature=0.0),
    "cool": replace(NEUTRAL, temperature=0.6),
    "hot": replace(NEUTRAL, temperature=1.7),
    "top-k": replace(NEUTRAL, top_k=2),
    "top-p": replace(NEUTRAL, top_p=0.7),
    "min-p": replace(NEUTRAL, min_p=0.3),
    "repetition": replace(NEUTRAL, repetition_penalty=1.8),
    "presence": replace(NEUTRAL, presence_penalty=0.9),
    "frequency": replace(NEUTRAL, frequency_penalty=0.7),
    "bias": replace(NEUTRAL, logit_bias={1: 1.5, 2: -2.0}),
    "greedy, penalised": replace(NEUTRAL, temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0),
    "usual": Sampling(0.8, 0.95, 3, 0.05, None, 1.0, 0.0, 0.0, {}),
    "all": Sampling(0.8, 0.9, 3, 0.1, None, 1.3, 0.4, 0.5, {0: 0.5}),
}
PROMPT, ANSWER = (0, 2), (2, 1)  # tokens before the round
SMALLEST, LARGEST = 2.0**-33, 1 - 2.0**-24  # the ends of the noise

Prefix = tuple[int, ...]


def logits(which: str, prefix: Prefix, vocab: int) -> np.ndarray:
    """Float32 logits [vocab] of the "target" or the "draft" after `prefix`: alike, not equal; with ties and, after token 1, a -inf."""
    target = np.random.default_rng([1, len(prefix), *prefix]).normal(0.0, 1.5, vocab)
    own = target if which == "target" else target + np.random.default_rng([2, len(prefix), *prefix]).normal(0.0, 1.0, vocab)
    own = np.round(own * 2) / 2
    if prefix and prefix[-1] == 1:
        own[2] = -np.inf
    return own.astype(np.float32)


def rule(values: np.ndarray, sampling: Sampling, prompt: Prefix, answer: Prefix) -> np.ndarray:
    """The distribution [vocab] float64 of one row, computed directly, token by token."""
    x = [float(v) for v in values]
    for token in range(len(x)):
        if token in prompt or token in answer:
            x[token] *= 1 / sampling.repetition_penalty if x[token] > 0 else sampling.repetition_penalty
        x[token] -= sampling.presence_penalty * (token in answer) + sampling.frequency_penalty * answer.count(token)
        x[token] += sampling.logit_bias.get(token, 0.0)
    ranked = sorted(range(len(x)), key=lambda token: (-x[token], token))
    ranked = ranked[: 1 if sampling.temperature == 0 else sampling.top_k or None]
    p = {token: np.exp((x[token] - x[ranked[0]]) / (sampling.temperature or 1.0)) for token in ranked}
    total, mass = sum(p.values()), 0.0
    kept: list[int] = []
    for token in ranked:
        if not kept or mass < sampling.top_p * total:
            kept.append(token)
            mass += p[token]
    kept = [token for token in kept if p[token] >= sampling.min_p * p[kept[0]]]
    probs = np.zeros(len(x))
    probs[kept] = [p[token] for token in kept]
    return probs / probs.sum()


def target_distribution(sampling: Sampling, length: int, vocab: int) -> np.ndarray:
    """The joint distribution [vocab] * length of the next `length` tokens of the target alone, by `rule`."""
    joint = np.zeros((vocab,) * length)
    for tokens in product(range(vocab), repeat=length):
        joint[tokens] = np.prod(
            [rule(logits("target", tokens[:i], vocab), sampling, PROMPT, ANSWER + tokens[:i])[tokens[i]] for i in range(length)]
        )
    return joint


def distributions(which: str, drafts: Prefix, rows: int, sampling: Sampling, vocab: int) -> mx.array:
    """`distribution` for the last `rows` prefixes of `drafts`: [rows, vocab]."""
    counts: Counts = count_prompt(mx.array(PROMPT), vocab).extended(mx.array(ANSWER))
    counts = counts._replace(drafts=mx.array(drafts, dtype=mx.int32))
    prefixes = [drafts[:i] for i in range(len(drafts) - rows + 1, len(drafts) + 1)]
    return distribution(mx.array(np.stack([logits(which, prefix, vocab) for prefix in prefixes])), sampling, counts)


def boundary(holds: Callable[[mx.array], mx.array], size: int) -> np.ndarray:
    """For each of `size` decisions, the u up to which it holds: [size] float64. Asserts that it holds below and fails above."""
    low, high = np.zeros(size), np.ones(size)
    for _ in range(30):
        middle = (low + high) / 2
        below = np.array(holds(_noise(middle)))
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    edge = (low + high) / 2
    for u in np.linspace(0.003, 0.997, 24):
        clear = np.abs(edge - u) > 1e-6
        assert (np.array(holds(_noise(np.full(size, u)))) == (u < edge))[clear].all()
    return edge


def draw_distribution(choose: Callable[[mx.array], mx.array], size: int, vocab: int) -> np.ndarray:
    """The distribution [size, vocab] of a token that `choose` makes of u [size * vocab], `vocab` lanes a row, monotonic in u."""
    lanes = np.tile(np.arange(vocab), size)
    edges = boundary(lambda u: choose(u) <= mx.array(lanes), size * vocab).reshape(size, vocab)
    return np.diff(edges, axis=1, prepend=0.0)


def plain_draw_distribution(probs: np.ndarray) -> np.ndarray:
    """The exact distribution [rows, vocab] of `draw`."""
    rows, vocab = probs.shape
    lanes = mx.array(np.repeat(probs.astype(np.float32), vocab, axis=0))
    return draw_distribution(lambda u: draw(lanes, u), rows, vocab)


def round_distribution(sampling: Sampling, depth: int, vocab: int) -> np.ndarray:
    """The exact joint distribution [vocab] * (depth + 1) of the tokens after a round with `depth` drafts, the rest drawn by `rule`."""
    every = list(product(range(vocab), repeat=depth))
    target = mx.stack([distributions("target", drafts, depth + 1, sampling, vocab) for drafts in every])
    draft = mx.stack([draft_distributions(drafts, sampling, vocab) for drafts in every])
    drafts = mx.array(np.array(every, dtype=np.int32).reshape(len(every), depth))
    accepted = _acceptance(target, draft, drafts)
    token = _token_distribution(target, draft, drafts)
    drawn = np.array(mx.prod(mx.take_along_axis(draft, drafts[..., None], axis=-1)[..., 0], axis=1))
    return _completed(every, drawn, accepted, token, target_distribution(sampling, depth + 1, vocab))


def draft_distributions(drafts: Prefix, sampling: Sampling, vocab: int) -> mx.array:
    rows = [distributions("draft", drafts[:i], 1, sampling, vocab) for i in range(len(drafts))]
    return mx.concatenate(rows) if rows else mx.zeros((0, vocab))


def _noise(u: np.ndarray) -> mx.array:
    return mx.array(np.clip(u, SMALLEST, LARGEST).astype(np.float32))


def _acceptance(target: mx.array, draft: mx.array, drafts: mx.array) -> np.ndarray:
    """The probability [n, depth] that draft i is accepted if those before it were."""
    num, depth = drafts.shape
    column = np.tile(np.arange(depth), num)
    which = np.repeat(np.arange(num), depth)

    def holds(u: mx.array) -> mx.array:
        u_accept = mx.where(mx.array(column)[:, None] == mx.arange(depth), u[:, None], SMALLEST)
        verdict = verify(target[mx.array(which)], draft[mx.array(which)], drafts[mx.array(which)], u_accept, mx.full(which.size, 0.5))
        return verdict.accepted > mx.array(column)

    return boundary(holds, num * depth).reshape(num, depth) if depth else np.zeros((num, 0))


def _token_distribution(target: mx.array, draft: mx.array, drafts: mx.array) -> np.ndarray:
    """The distribution [n, depth + 1, vocab] of the token that follows i accepted drafts, the next one rejected."""
    num, depth = drafts.shape
    vocab = target.shape[-1]
    column = mx.array(np.tile(np.repeat(np.arange(depth + 1), vocab), num))
    which = mx.array(np.repeat(np.arange(num), (depth + 1) * vocab))
    u_accept = mx.where(mx.arange(depth) < column[:, None], SMALLEST, LARGEST)
    probs = draw_distribution(lambda u: verify(target[which], draft[which], drafts[which], u_accept, u).token, num * (depth + 1), vocab)
    return probs.reshape(num, depth + 1, vocab)


def _completed(every: list[Prefix], drawn: np.ndarray, acceptance: np.ndarray, token: np.ndarray, joint: np.ndarray) -> np.ndarray:
    emitted = np.zeros_like(joint)
    depth, vocab = joint.ndim - 1, joint.shape[0]
    for row, drafts in enumerate(every):
        for accepted in range(depth + 1):
            rejected = 1 - acceptance[row, accepted] if accepted < depth else 1.0
            weight = drawn[row] * acceptance[row, :accepted].prod() * rejected
            for after in range(vocab):
                tokens = (*drafts[:accepted], after)
                emitted[tokens] += weight * token[row, accepted, after] * _conditional(joint[tokens])
    return emitted


def _conditional(joint: np.ndarray) -> np.ndarray:
    return joint / joint.sum() if joint.sum() else np.full_like(joint, 1 / joint.size)

"""From logits to the distribution that a token is drawn from: grammar, penalties, bias, temperature, top-k, top-p, min-p.

Pure: arrays in, arrays out, no state, no host synchronisation, no shape that depends on data. Knows nothing of models, drafts or noise;
target and draft logits go through the same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from forerun.errors import BadRequestError
from forerun.kernels.largest import largest_ids
from forerun.values import Sampling

SMALLEST_TEMPERATURE = 1e-30  # below, float32 divides by zero; the distribution is that of temperature 0 long before


class Counts(NamedTuple):
    """The tokens that a row's penalties count.

    prompt [vocab] bool: occurs in the prompt. answer [vocab] int32: occurrences in the answer so far. drafts [drafted] int32: tokens
    drafted after it in this round. The last row of `distribution` follows all the drafts, the one before it all but the last, and so on.
    """

    prompt: mx.array
    answer: mx.array
    drafts: mx.array

    def extended(self, tokens: mx.array) -> Counts:
        """The counts after `tokens` [n] int32 became part of the answer, with no drafts."""
        return Counts(self.prompt, self.answer.at[tokens].add(1), self.drafts[:0])


def count_prompt(tokens: mx.array, vocab: int) -> Counts:
    """The counts of an empty answer to the prompt `tokens` [n] int32."""
    seen = mx.zeros((vocab,), dtype=mx.int32).at[tokens].add(1) > 0
    return Counts(seen, mx.zeros((vocab,), dtype=mx.int32), mx.zeros((0,), dtype=mx.int32))


def has_penalty(sampling: Sampling) -> bool:
    """Whether `distribution` needs Counts for this sampling."""
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def is_finite(logits: mx.array) -> mx.array:
    """Whether each row [rows] bool has a distribution: no NaN, no +inf, and not -inf throughout. Lazy: evaluate it with the tokens."""
    return mx.isfinite(mx.max(logits, axis=-1))


def distribution(logits: mx.array, sampling: Sampling, counts: Counts | None, allowed: mx.array | None = None) -> mx.array:
    """The probabilities [rows, vocab] float32 of `logits` [rows, vocab] float32 under `sampling`.

    In this order: grammar (tokens outside `allowed` [rows, vocab] bool become impossible; None: all are allowed), repetition penalty (CTRL:
    positive logits divided, negative multiplied, for tokens of prompt or answer), presence and frequency penalty (OpenAI: subtracted, for
    tokens of the answer alone), logit_bias, temperature, top_k, top_p (the smallest set whose share of what top_k left reaches top_p),
    min_p (relative to the largest). Of equal logits the lower token id ranks first, so exactly top_k tokens survive; temperature 0 is
    top_k 1. The largest token always survives. A row without a distribution (`is_finite`) holds NaN.
    `counts` may be None only without penalties. Raises BadRequestError if logit_bias names a token outside the vocabulary.
    """
    logits = adjusted(logits, sampling, counts, allowed)
    vocab = logits.shape[-1]
    num = 1 if sampling.temperature == 0 else min(sampling.top_k or vocab, vocab)
    largest = mx.max(logits, axis=-1, keepdims=True)
    temperature = max(sampling.temperature, SMALLEST_TEMPERATURE) if sampling.temperature else 1.0
    if num == vocab and sampling.top_p >= 1 and sampling.min_p <= 0:
        return mx.softmax((logits - largest) / temperature, axis=-1)
    ids = largest_ids(logits, num)
    probs = mx.softmax((mx.take_along_axis(logits, ids, axis=-1) - largest) / temperature, axis=-1)
    return mx.put_along_axis(mx.zeros_like(logits), ids, _cut(probs, sampling.top_p, sampling.min_p), axis=-1)


def adjusted(logits: mx.array, sampling: Sampling, counts: Counts | None, allowed: mx.array | None = None) -> mx.array:
    """`logits` [rows, vocab] after grammar, penalties and bias: at temperature 0 the largest of each row is the token."""
    if allowed is not None:
        logits = mx.where(allowed, logits, -mx.inf)
    return _biased(_penalised(logits, sampling, counts), sampling.logit_bias)


def _cut(probs: mx.array, top_p: float, min_p: float) -> mx.array:
    """Descending `probs` [rows, n] without what top_p and min_p drop, summing to 1 again."""
    before = mx.cumsum(probs, axis=-1, inclusive=False)
    keep = (before < top_p) | (before == 0)
    keep = keep & (probs >= min_p * probs[:, :1])
    left = mx.where(keep, probs, 0.0)
    return left / mx.sum(left, axis=-1, keepdims=True)


def _penalised(logits: mx.array, sampling: Sampling, counts: Counts | None) -> mx.array:
    if not has_penalty(sampling):
        return logits
    if counts is None:
        raise ValueError("penalties need counts")
    answer = _in_answer(counts, logits.shape[0])
    penalty = sampling.repetition_penalty
    repeated = mx.where(logits > 0, logits / penalty, logits * penalty)
    logits = mx.where(counts.prompt | (answer > 0), repeated, logits)
    return logits - sampling.presence_penalty * (answer > 0) - sampling.frequency_penalty * answer


def _in_answer(counts: Counts, rows: int) -> mx.array:
    """Occurrences [rows, vocab] float32 in the answer and in the drafts that each row follows."""
    drafted, vocab = counts.drafts.shape[0], counts.answer.shape[0]
    if not drafted:
        return mx.broadcast_to(counts.answer.astype(mx.float32), (rows, vocab))
    follows = mx.arange(drafted) < mx.arange(drafted - rows + 1, drafted + 1)[:, None]
    one_hot = counts.drafts[:, None] == mx.arange(vocab)
    return counts.answer + follows.astype(mx.float32) @ one_hot.astype(mx.float32)


def _biased(logits: mx.array, bias: Mapping[int, float]) -> mx.array:
    if not bias:
        return logits
    vocab = logits.shape[-1]
    outside = [token for token in bias if not 0 <= token < vocab]
    if outside:
        raise BadRequestError(f"logit_bias names token {outside[0]}", hint=f"token ids run from 0 to {vocab - 1}", param="logit_bias")
    return logits.at[:, mx.array(list(bias))].add(mx.array(list(bias.values())))

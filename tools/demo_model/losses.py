"""What the demo model is trained on: the next token for the target; for the MTP module the tokens after it and the target's own opinion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Model

DEPTH = 3


class Losses(NamedTuple):
    """Mean losses of a batch, in nats: the target's, and each draft step's."""

    target: Tensor
    first: Tensor
    second: Tensor
    third: Tensor

    def total(self, draft_weight: float) -> Tensor:
        return self.target + draft_weight * (self.first + 0.5 * self.second + 0.25 * self.third)


class Agreement(NamedTuple):
    """On held-out text: the target's loss, and how often each draft step's choice is the target's."""

    loss: float
    by_depth: list[float]


class Objective:
    """Measures a model on windows of token ids [rows, length + DEPTH + 1].

    window: the deeper draft steps are taken on windows of so many tokens (a divisor of the length), `num_windows` of them a batch.
    soft: the share of a draft loss that is taken from the target's distribution. Compiled: one graph a layer.
    """

    def __init__(self, model: Model, dtype: torch.dtype, window: int, num_windows: int, soft: float) -> None:
        self._model, self._dtype = model, dtype
        self._window, self._num_windows, self._soft = window, num_windows, soft
        self._next_token_loss: Callable[..., Tensor] = next_token_loss
        self._draft_loss: Callable[..., Tensor] = draft_loss

    def compile(self) -> None:
        """Compile the layers and the losses."""
        torch._dynamo.config.cache_size_limit = 64
        self._next_token_loss = torch.compile(next_token_loss, dynamic=True)
        self._draft_loss = torch.compile(draft_loss, dynamic=True)
        for layer in [*self._model.model.layers, *self._model.mtp.layers]:
            layer.compile(dynamic=False)
        self._model.mtp.join = torch.compile(self._model.mtp.join, dynamic=False)  # type: ignore[method-assign]  # no module of its own

    def losses(self, windows: Tensor) -> Losses:
        """The losses on training windows."""
        length, head = windows.shape[1] - DEPTH - 1, self._model.model.embed_tokens.weight
        hidden = self._model.model(windows[:, :length])
        teacher = hidden.to(self._dtype)
        target = self._next_token_loss(_rows(teacher), head, windows[:, 1 : length + 1].flatten())
        first = self._model.mtp(hidden, self._model.model.embed_tokens(windows[:, 1 : length + 1])).to(self._dtype)
        # The target's prediction of the token that a draft step predicts is one position later for each step.
        targets = windows[:, 2 : length + 1]
        losses = [self._draft_loss(_rows(first[:, :-1]), head, targets.flatten(), _rows(teacher[:, 1:]), self._soft)]
        for step, draft in enumerate(self._drafts(hidden, windows)):
            if step:
                last = draft.shape[1] - 1 - step
                targets = self._cut(windows[:, step + 2 : step + 2 + length])[:, :last]
                later = _rows(self._cut(teacher)[:, 1 + step :])
                losses.append(self._draft_loss(_rows(draft[:, :last].to(self._dtype)), head, targets.flatten(), later, self._soft))
        return Losses(target, *losses)

    def agreement(self, windows: Tensor) -> Agreement:
        """The losses of the same windows, without updating. Gradients come along, since the training graphs are reused; drop them."""
        length, head = windows.shape[1] - DEPTH - 1, self._model.model.embed_tokens.weight
        hidden = self._model.model(windows[:, :length])
        loss = self._next_token_loss(_rows(hidden.to(self._dtype)), head, windows[:, 1 : length + 1].flatten())
        chosen = self._choice(self._cut(hidden))
        drafted = [self._choice(draft) for draft in self._drafts(hidden, windows)]
        agreed = [(draft[:, : -1 - step] == chosen[:, 1 + step :]).float().mean().item() for step, draft in enumerate(drafted)]
        return Agreement(loss.item(), agreed)

    def _drafts(self, hidden: Tensor, windows: Tensor) -> Iterator[Tensor]:
        """Hidden vectors of every draft step [num_windows, window, hidden]."""
        length, embeddings = hidden.shape[1], self._model.model.embed_tokens(windows[:, 1:])
        shifted = [self._cut(embeddings[:, step : step + length]) for step in range(DEPTH)]
        return iter(self._model.mtp.draft_steps(self._cut(hidden), shifted))

    def _cut(self, rows: Tensor) -> Tensor:
        """The first windows of [rows, length, ...]."""
        return rows.reshape(-1, min(rows.shape[1], self._window), *rows.shape[2:])[: self._num_windows]

    def _choice(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden.to(self._dtype)).argmax(-1)


def next_token_loss(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the shared head over hidden vectors [rows, hidden]."""
    logits = F.linear(hidden, head.to(hidden.dtype)).float()
    return (torch.logsumexp(logits, -1) - logits.gather(1, targets[:, None])[:, 0]).mean()


def draft_loss(hidden: Tensor, head: Tensor, targets: Tensor, teacher: Tensor, soft: float) -> Tensor:
    """Mean cross-entropy of drafts: a share `soft` against the target's distribution, the rest against the true token."""
    logits = F.linear(hidden, head.to(hidden.dtype)).float()
    normaliser = torch.logsumexp(logits, -1)
    hard = normaliser - logits.gather(1, targets[:, None])[:, 0]
    with torch.no_grad():
        soft_targets = torch.softmax(F.linear(teacher.detach(), head.detach().to(hidden.dtype)).float(), -1)
    return ((1 - soft) * hard + soft * (normaliser - (soft_targets * logits).sum(-1))).mean()


def _rows(hidden: Tensor) -> Tensor:
    return hidden.reshape(-1, hidden.shape[-1])

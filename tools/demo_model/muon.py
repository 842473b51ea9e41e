"""Muon (Jordan et al., 2024): momentum whose update of each matrix is orthogonalised by a few Newton-Schulz steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

STEPS = 5


class Muon:
    """An optimiser of matrices; those of one shape are updated together."""

    def __init__(self, parameters: Iterable[Tensor], momentum: float = 0.95, decay: float = 0.1) -> None:
        self._groups: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            self._groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self._averages = {shape: torch.zeros(len(group), *shape, device=group[0].device) for shape, group in self._groups.items()}
        self._momentum, self._decay = momentum, decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the parameters by their gradients."""
        for shape, group in self._groups.items():
            gradient, average = torch.stack([parameter.grad for parameter in group]), self._averages[shape]
            average.lerp_(gradient, 1 - self._momentum)
            update = orthogonal(gradient.lerp(average, self._momentum)) * max(1, shape[0] / shape[1]) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self._decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-rate)


@torch.no_grad()
def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [count, rows, columns] with their singular values brought near one, in float32."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.mT if is_tall else x).float()

"""Compares two answers under teacher forcing, in this process, on the bundled model. The only part of the demo that loads MLX."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.demo.compare import NearTies
from forerun.errors import UnsupportedError


def near_ties(prompt: Sequence[int], answer_a: Sequence[int], answer_b: Sequence[int]) -> NearTies:
    """Where the two answers (token ids) differ from the model's own choice after `prompt`, and by how much."""
    raise UnsupportedError("comparing different answers under `served` numerics is not built yet", hint="use --numerics reference")

"""Named tensors of a checkpoint, each to be taken exactly once: an unknown or a missing name is an error that lists the names."""

from __future__ import annotations

import mlx.core as mx

from forerun.errors import ModelError


class Weights:
    """The tensors of a checkpoint under their own names. `take` all that the model needs, then `done`."""

    def __init__(self, tensors: dict[str, mx.array], *, origin: str) -> None:
        self._tensors, self._origin = dict(tensors), origin
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def take(self, name: str, *shape: int) -> mx.array:
        """The tensor `name`, which must have this shape. What is amiss is collected and raised by `done`."""
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            self._missing.append(name)
        elif tensor.shape != shape:
            self._misshapen.append(f"{name}: {list(tensor.shape)} instead of {list(shape)}")
        else:
            return tensor
        return mx.zeros(shape)

    def done(self) -> None:
        """Raises ModelError unless every tensor was taken, and every one that was asked for was there in its shape."""
        problems = [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (("missing", self._missing), ("unknown", list(self._tensors)), ("wrong shape", self._misshapen))
            if names
        ]
        if problems:
            raise ModelError(
                f"the weights in {self._origin} do not fit the model; {'; '.join(problems)}",
                hint="the checkpoint is of another family or version, or its conversion lost or renamed tensors",
            )

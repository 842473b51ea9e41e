"""Named tensors of a checkpoint, each taken exactly once: unknown and missing names are an error that lists them.

A tensor is read from its file when taken and released when it is part of a layer, so that there is no second copy of the model. Knows how
matrices are quantised; knows no family and no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError
from forerun.kernels import blocks
from forerun.kernels.linear import is_taken
from forerun.kernels.quantised import PackedMatrix, Scheme, has_cpu_kernel
from forerun.models.checkpoint import Checkpoint
from forerun.models.linear import SCHEMES, BlockLinear, DenseLinear, Linear, QuantisedLinear, stacked
from forerun.models.names import canonical

MAX_NAMES = 30


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How tensors are loaded. dtype: of activations, and of weights that no kernel takes as stored; is_dense: dequantise such matrices.

    on_tensor: called with name and stored values of every tensor that is read.
    """

    dtype: str
    is_dense: bool
    on_tensor: Callable[[str, mx.array], None]


class Weights:
    """The tensors of a checkpoint by canonical name, moved out of the checkpoint. Take all that the model needs, then call `done`.

    shapes: of all plain matrices [out, in], as used in products. notes: what the user should know of the loading; as_stored, dequantised:
    numbers of quantised matrices by how they are stored.
    """

    def __init__(self, checkpoint: Checkpoint, options: ReadOptions) -> None:
        self.config, self.has_separate_head, self.dtype = checkpoint.config, checkpoint.has_separate_head, options.dtype
        self._tensors, self._options, self._origin = dict(checkpoint.tensors), options, checkpoint.origin
        checkpoint.tensors.clear()
        self._mlx_dtype: mx.Dtype = getattr(mx, options.dtype)
        self._declared = {canonical(path): how for path, how in declared(self.config).items() if isinstance(how, dict | bool)}
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._mispacked: list[str] = []
        self.as_stored, self.dequantised = Counter[str](), Counter[str]()
        self.shapes: set[tuple[int, int]] = set()
        self.notes: list[str] = []

    def names(self, prefix: str) -> list[str]:
        """The names not yet taken that begin with `prefix`, sorted."""
        return sorted(name for name in self._tensors if name.startswith(prefix))

    def peek(self, name: str) -> mx.array:
        """The stored tensor, without taking it; an empty array if there is none."""
        return self._tensors.get(name, mx.zeros((0,)))

    def drop(self, prefix: str, reason: str) -> None:
        """Drop the tensors that begin with `prefix` unread, and note the reason."""
        names = self.names(prefix)
        for name in names:
            del self._tensors[name]
        if names:
            self.notes.append(f"not read: {', '.join(names)} ({reason})")

    def take(self, name: str, *shape: int) -> mx.array:
        """The stored tensor `name`, which must have this shape. Faults are collected and raised by `done`."""
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            self._missing.append(name)
        elif tensor.shape != shape:
            self._misshapen.append(f"{name}: {list(tensor.shape)} instead of {list(shape)}")
        else:
            return self._read(name, tensor)
        return mx.zeros(shape)

    def array(self, name: str, *shape: int) -> mx.array:
        """`take`, in the dtype of the model."""
        return self.evaluated(self.take(name, *shape).astype(self._mlx_dtype))

    def gain(self, name: str, dim: int, *, is_zero_centred: bool) -> mx.array:
        """The gain of the norm `name`: the tensor, plus 1 in float32 if zero-centred."""
        gain = self.take(name, dim).astype(mx.float32) + (1.0 if is_zero_centred else 0.0)
        return self.evaluated(gain.astype(self._mlx_dtype))

    def linear(self, inner: int, outs: Mapping[str, int], *, experts: tuple[int, ...] = ()) -> Linear:
        """The stacked matrices [*experts, out, inner] of these modules. `experts`: empty, or their number."""
        return self.joined([self.matrix(path, *experts, out, inner) for path, out in outs.items()])

    def head(self, vocab: int, hidden: int, *, tied_to: Linear | None) -> Linear:
        """The output matrix: `lm_head`, or the tied embedding; then a stored head is dropped."""
        if tied_to is None:
            return self.linear(hidden, {"lm_head": vocab})
        self.drop("lm_head.", "the head is the embedding")
        return tied_to

    def joined(self, parts: Sequence[Linear]) -> Linear:
        """Several matrices stacked into one and evaluated; its shape is recorded."""
        whole = stacked(parts)
        for array in whole.arrays():
            self.evaluated(array)
        if isinstance(whole, DenseLinear) and len(whole.shape) == 2:
            self.shapes.add((whole.shape[0], whole.shape[1]))
        return whole

    def matrix(self, path: str, *shape: int) -> Linear:
        """The matrix [..., out, in] of a module, for `joined`."""
        if format := next((name for name in blocks.FORMATS if f"{path}.{name}" in self._tensors), None):
            return self._of_blocks(path, format, *shape)
        if f"{path}.scales" not in self._tensors:
            return self._plain(path, shape)
        scheme = self._scheme(path, shape)
        if scheme is None:
            return DenseLinear(mx.zeros(shape), self._mlx_dtype)
        return self._quantised(self._packed(path, shape, scheme), str(scheme))

    def done(self) -> None:
        """Raises ModelError unless every tensor was taken, and every requested one was there with its shape."""
        kinds = {
            "missing": self._missing,
            "unknown": [*self._tensors],
            "wrong shape": self._misshapen,
            "packed wrongly": self._mispacked,
        }
        problems = [f"{what}: {_listed(names)}" for what, names in kinds.items() if names]
        if problems:
            raise ModelError(
                f"the weights in {self._origin} do not fit the model; {'; '.join(problems)}",
                hint="the checkpoint is of another family or version, or its conversion lost or renamed tensors",
            )

    def _plain(self, path: str, shape: tuple[int, ...]) -> DenseLinear:
        """The matrix as stored where products take it so, else in the dtype of the model."""
        stored = self.take(f"{path}.weight", *shape)
        return DenseLinear(self.evaluated(stored if is_taken(stored) else stored.astype(self._mlx_dtype)), self._mlx_dtype)

    def _of_blocks(self, path: str, format: str, *shape: int) -> Linear:
        """A matrix in GGUF's blocks: as it is for the CPU kernels, else in MLX's scheme if that has the format, else dequantised."""
        form, (*outer, inner) = blocks.FORMATS[format], shape
        stored = self.take(f"{path}.{format}", *outer, -(-inner // form.num_weights) * form.num_bytes)
        if blocks.has_cpu_kernel():
            self.as_stored[format.upper()] += 1
            return BlockLinear(stored, format)
        if format in blocks.PACKED:
            return self._quantised(QuantisedLinear(blocks.packed(stored, format), self._mlx_dtype), format.upper())
        self.dequantised[format.upper()] += 1
        return DenseLinear(blocks.dequantise(stored, format, self._mlx_dtype), self._mlx_dtype)

    def _quantised(self, matrix: QuantisedLinear, name: str) -> Linear:
        """The matrix, dequantised if the options and its scheme require it."""
        is_dense = self._options.is_dense and not has_cpu_kernel(matrix.packed.scheme)
        (self.dequantised if is_dense else self.as_stored)[name] += 1
        return DenseLinear(self.evaluated(matrix.dense().weight), self._mlx_dtype) if is_dense else matrix

    def _packed(self, path: str, shape: tuple[int, ...], scheme: Scheme) -> QuantisedLinear:
        *outer, inner = shape
        packed = self.take(f"{path}.weight", *outer, inner * scheme.bits // 32)
        scales = self.take(f"{path}.scales", *outer, inner // scheme.group_size)
        if scheme.mode != "affine":
            return QuantisedLinear(PackedMatrix(packed, scales, None, scheme), self._mlx_dtype)
        biases = self.take(f"{path}.biases", *scales.shape)
        if not has_cpu_kernel(scheme):
            scales, biases = (self.evaluated(a.astype(self._mlx_dtype)) for a in (scales, biases))
        return QuantisedLinear(PackedMatrix(packed, scales, biases, scheme), self._mlx_dtype)

    def _scheme(self, path: str, shape: tuple[int, ...]) -> Scheme | None:
        """The module's scheme, from the shapes of its arrays; None, with the fault recorded, if unknown or not as declared."""
        packed, scales, inner = self.peek(f"{path}.weight"), self.peek(f"{path}.scales"), shape[-1]
        is_affine = f"{path}.biases" in self._tensors
        fits = [s for s in SCHEMES if (s.mode == "affine") == is_affine and _fits(s, packed, scales, inner)]
        declared = self._declared.get(path, True)
        if len(fits) == 1 and _is_as_declared(fits[0], declared):
            return fits[0]
        actual = str(fits[0]) if fits else f"{list(packed.shape)} with scales {list(scales.shape)}"
        self._mispacked.append(f"{path}: {actual}, declared {declared}" if fits else f"{path}: {actual} for {list(shape)}")
        for part in ("weight", "scales", "biases"):
            self._tensors.pop(f"{path}.{part}", None)
        return None

    def _read(self, name: str, tensor: mx.array) -> mx.array:
        try:
            mx.eval(tensor)
        except RuntimeError as error:
            raise ModelError(f"{self._origin}: {name} cannot be read: {error}", hint="a file is damaged; fetch it again") from error
        self._options.on_tensor(name, tensor)
        return tensor

    def evaluated(self, array: mx.array) -> mx.array:
        """The array, evaluated, so that its inputs can be freed; not evaluated once the checkpoint is known not to fit."""
        if not (self._missing or self._misshapen or self._mispacked):
            mx.eval(array)
        return array


def declared(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The MLX quantisation in config.json: for all matrices, and for some by path; empty if nothing is quantised."""
    return config.get("quantization") or {}


def _listed(names: Sequence[str]) -> str:
    """The first MAX_NAMES sorted names and the number of others: hundreds of experts may be missing."""
    more = len(names) - MAX_NAMES
    return ", ".join(sorted(names)[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _fits(scheme: Scheme, packed: mx.array, scales: mx.array, inner: int) -> bool:
    widths = inner * scheme.bits // 32, inner // scheme.group_size
    return packed.dtype == mx.uint32 and packed.ndim > 1 and scales.ndim > 1 and (packed.shape[-1], scales.shape[-1]) == widths


def _is_as_declared(scheme: Scheme, declared: Mapping[str, Any] | bool) -> bool:
    if isinstance(declared, bool):
        return declared
    return all(declared.get(field, value) == value for field, value in (("bits", scheme.bits), ("group_size", scheme.group_size)))

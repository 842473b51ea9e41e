"""The cost of a checkpoint on a machine: memory, context, disk; and what would be slow there, and why. Pure; reads no weights.

Knows the families' configurations for their state; models/load.py decides how weights are held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.filesize import decimal

from forerun.kernels.arithmetic import dtype_on
from forerun.models.families import KINDS
from forerun.models.inspect import Checkpoint, Module
from forerun.state.spec import StateSpec

# Share of memory for weights and conversations; the rest is for the system, for prefill and for the agent's own tools.
MEMORY_FRAC = 0.75
# On a CPU, quantised weights are dequantised if they then take at most this share of memory (load.dense_limit_bytes).
DENSE_FRAC = 0.5
BLOCKS = re.compile(r"Q\d")  # the beginning of the formats of GGUF's blocks
KERNEL_FORMATS = re.compile(r"[48]-bit affine|Q\d")  # that the CPU kernels take, besides plain matrices
PACKED_BITS = {"Q8_0": 9, "Q4_0": 5, "Q4_1": 5}  # per weight in MLX's form, with scales and biases (kernels/blocks.packed)
SLOW_READ_BYTES = 4_000_000_000
# Head sizes with tuned delta-rule kernels in MLX on Metal.
METAL_KEY_DIMS = (64, 128)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that would run a model. bank_ram_bytes: for conversations in RAM; bank_bytes: quota of their folder; 0 is none.

    has_cpu_kernels: weights are multiplied as stored (docs/cpu.md).
    """

    memory_bytes: int
    bank_ram_bytes: int
    bank_bytes: int
    is_cpu: bool
    has_cpu_kernels: bool

    @property
    def dtype(self) -> str:
        return dtype_on(is_cpu=self.is_cpu)

    @property
    def usable_bytes(self) -> int:
        return int(self.memory_bytes * MEMORY_FRAC)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The cost of a served checkpoint on a machine. declared_tokens: the context length of the model.

    memory_tokens: context that fits next to weights and the RAM for stored conversations; bank_tokens: all conversations on disk,
    without snapshots.
    """

    dtype: str
    weights_bytes: int
    bytes_per_1000_tokens: int
    bytes_per_snapshot: int
    declared_tokens: int
    memory_tokens: int
    bank_tokens: int
    slow: tuple[str, ...]


def fit(checkpoint: Checkpoint, machine: Machine) -> MemoryFit:
    """The cost of serving the checkpoint, for which `is_supported` holds. Raises ModelError if its configuration is incomplete."""
    config = KINDS[checkpoint.family].config.parse(checkpoint.config)
    spec = config.spec(machine.dtype)
    spec = spec if checkpoint.mtp != "none" else replace(spec, draft_layers=())
    weights_bytes = weights_in_memory(checkpoint, machine)
    free_bytes = max(0, machine.usable_bytes - weights_bytes - machine.bank_ram_bytes - spec.bytes_per_snapshot)
    return MemoryFit(
        dtype=machine.dtype,
        weights_bytes=weights_bytes,
        bytes_per_1000_tokens=spec.bytes_per_token * 1000,
        bytes_per_snapshot=spec.bytes_per_snapshot,
        declared_tokens=config.context_tokens,
        memory_tokens=min(config.context_tokens, free_bytes // spec.bytes_per_token),
        bank_tokens=machine.bank_bytes // spec.bytes_per_token,
        slow=tuple(slow(checkpoint, spec, machine)),
    )


def is_supported(checkpoint: Checkpoint) -> bool:
    """Whether there is a family for the checkpoint."""
    return checkpoint.family in KINDS


def weights_in_memory(checkpoint: Checkpoint, machine: Machine) -> int:
    """Bytes of the served modules."""
    is_dense = 4 * checkpoint.num_params <= machine.memory_bytes * DENSE_FRAC
    return sum(_in_memory(module, machine, is_dense=is_dense) for module in checkpoint.served)


def _in_memory(module: Module, machine: Machine, *, is_dense: bool) -> int:
    """Bytes: as stored on a GPU and where CPU kernels take them so; else in float32, except quantised weights that would take too much.
    Without those kernels GGUF's blocks are in MLX's form, or in the dtype of the model where that has none.
    """
    if machine.has_cpu_kernels and (not module.is_quantised or KERNEL_FORMATS.match(module.format)):
        return module.num_bytes
    if machine.is_cpu and (is_dense or not module.is_quantised):
        return 4 * module.num_params
    if BLOCKS.match(module.format):
        return module.num_params * PACKED_BITS.get(module.format, 32 if machine.is_cpu else 16) // 8
    return module.num_bytes


def slow(checkpoint: Checkpoint, spec: StateSpec, machine: Machine) -> Iterator[str]:
    """What will be slow there, and why, one sentence each."""
    weights_bytes, is_quantised = weights_in_memory(checkpoint, machine), any(m.is_quantised for m in checkpoint.served)
    if weights_bytes > machine.usable_bytes:
        yield f"the weights take {decimal(weights_bytes)} of {decimal(machine.memory_bytes)} of memory: it will swap, or not start"
    if machine.is_cpu and not machine.has_cpu_kernels and is_quantised and weights_bytes < 4 * checkpoint.num_params:
        yield "MLX multiplies quantised weights slowly on a CPU, and in float32 they would take more than half of the memory"
    read_bytes = weights_bytes * checkpoint.num_active_params // checkpoint.num_params
    if read_bytes > SLOW_READ_BYTES and machine.is_cpu:
        yield f"each token reads {decimal(read_bytes)} of weights, at the speed of this machine's memory"
    if read_bytes > SLOW_READ_BYTES and not machine.is_cpu and not is_quantised:
        yield f"each token reads {decimal(read_bytes)} of weights; `forerun models convert` makes that a quarter"
    yield from slow_heads(checkpoint, spec, machine)


def slow_heads(checkpoint: Checkpoint, spec: StateSpec, machine: Machine) -> Iterator[str]:
    """What is slow because of the draft head and the head sizes."""
    if checkpoint.mtp == "none":
        yield "there is no MTP head: nothing is drafted, each token costs a whole step"
    if any(m.kind == "mtp" and m.is_quantised for m in checkpoint.served):
        yield "the MTP head is quantised: its drafts are accepted less often, or never"
    widths = {a.shape[-1] for layer in spec.recurrent for a in layer.arrays if a.name == "matrix"} - set(METAL_KEY_DIMS)
    if widths and not machine.is_cpu:
        yield f"MLX has fast kernels of the delta rule for key heads of 64 or 128 numbers, not of {widths.pop()}"

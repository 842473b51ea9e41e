"""Checks what this machine computes: device, kernels, the bundled model against its reference outputs, restored state against the original.

Imports MLX. Knows no settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.decode.prefill import prefill
from forerun.doctor.finding import Finding, failure, ok, warning
from forerun.kernels import cpu, proof
from forerun.kernels.arithmetic import Arithmetic, is_cpu
from forerun.kernels.numerics import ARRAYS
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL, load
from forerun.state.cache import Cache, Snapshot
from forerun.state.conversion import materialise
from forerun.state.layout import Contiguous
from forerun.state.record import Identity
from forerun.state.store import Arena

TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
REMEDY = "results on this machine cannot be trusted: install forerun again, with its versions of MLX and of the driver"


def device() -> Iterator[Finding]:
    """MLX's version and device."""
    yield ok("mlx", f"{version('mlx')} on {mx.default_device()}")


def cpu_kernels() -> Iterator[Finding]:
    """Instruction set and threads of the CPU kernels, or why there are none. Nothing on another device."""
    if not is_cpu():
        return
    if unusable := cpu.unusable():
        yield warning("cpu", f"no CPU kernels: {unusable.reason}", unusable.remedy)
    elif module := cpu.extension():
        yield _in_use(module.instruction_set(), module.num_threads())


def _in_use(instruction_set: str, num_threads: int) -> Finding:
    text = f"CPU kernels: {instruction_set}, {num_threads} thread{'s' * (num_threads != 1)}"
    if instruction_set == "portable":
        return warning("cpu", text, "expect slow answers: this processor has none of AVX-512, AVX2 and NEON")
    return ok("cpu", text)


def model(arithmetic: Arithmetic) -> Iterator[Finding]:
    """The bundled model: its kernels, its logits, and a restore of its state from a bank."""
    family = load(DEMO_MODEL, arithmetic.numerics, arithmetic.dtype, lambda doing, done_frac: None).family
    if arithmetic.numerics == ARRAYS:
        proof.prove_row_invariant(family.linear_shapes)
        yield ok("rows", "a row of a matrix product has the same bits for any number of rows")
    else:
        errors = "; ".join(f"{name} {error:.1e}" for name, error in proof.prove().items())
        yield ok("kernels", f"the kernels equal their references but for rounding: {errors}")
    prompts = json.loads((DEMO_MODEL / "reference.json").read_text())["prompts"]
    yield _reference(family, prompts, TOLERANCE[arithmetic.dtype])
    yield _restore(family, max((prompt["token_ids"] for prompt in prompts), key=len))


def _reference(family: Family, prompts: list[dict[str, Any]], tolerance: float) -> Finding:
    """The bundled model's logits after each prompt against its reference outputs."""
    worst = max(_difference(family, prompt) for prompt in prompts)
    text = f"the bundled model's logits differ from the reference by at most {worst:.1e} ({family.numerics.name}, {len(prompts)} prompts)"
    return ok("model", text) if worst <= tolerance else failure("model", text, REMEDY)


def _difference(family: Family, prompt: dict[str, Any]) -> float:
    logits = np.array(family.head(_prefilled(family, prompt["token_ids"])[0].hidden[None])[0].astype(mx.float32))
    return float(np.abs(logits[prompt["top5_ids"]] - prompt["top5_logits"]).max())


def _restore(family: Family, tokens: list[int]) -> Finding:
    """A conversation's state restored from RAM and from SSD against the original: the same bits."""
    with TemporaryDirectory() as folder:
        (original, _), (stored, snapshots) = _prefilled(family, tokens), _prefilled(family, tokens)
        bank, is_equal = _bank(family, Path(folder)), dict[str, bool]()
        bank.remember(stored, tokens, snapshots, FinishedTurn("doctor", "", 1, len(tokens), len(snapshots)))
        bank.flush(60.0)
        for source in ("ram", "ssd"):
            restored = bank.restore(tokens, tenant="", session="doctor", layout=Contiguous(), headroom_tokens=0)
            is_equal[source] = restored.source == source and is_same(original, restored.cache)
            bank.close()
            bank = _bank(family, Path(folder))
        bank.close()
    wrong = [source for source in is_equal if not is_equal[source]]
    if wrong:
        return failure("restore", f"a conversation restored from {' and '.join(wrong)} differs", REMEDY)
    return ok("restore", f"{len(tokens)} tokens restored from RAM and from SSD, bit for bit the same")


def is_same(one: Cache[Any], other: Cache[Any]) -> bool:
    """Whether two caches hold the same state, bit for bit."""
    if one.length != other.length:
        return False
    rows = zip(one.store.rows(0, one.length), other.store.rows(0, one.length), strict=True)
    fixed = zip(one.snapshot().arrays(), other.snapshot().arrays(), strict=True)
    return all(np.array_equal(a, b) for a, b in rows) and all(mx.array_equal(a, b) for a, b in fixed)


def _prefilled(family: Family, tokens: list[int]) -> tuple[Cache[Contiguous], list[Snapshot]]:
    """The cache after the tokens, with snapshots in the middle and at the end, as a turn takes them."""
    cache = materialise(Arena(family.spec), [], None, Contiguous(), len(tokens))
    snapshots = [snapshot for new in prefill(family, cache, tokens, [len(tokens) // 2, len(tokens)]) for snapshot in new]
    return cache, snapshots


def _bank(family: Family, folder: Path) -> Bank:
    disk = DiskTier(folder, limit_bytes=1 << 30, daily_limit_bytes=1 << 30, index=hold(folder))
    identity = Identity("doctor", "", "", "", "", family.numerics.name)
    return Bank(family.spec, identity, disk=disk, secret=secret(folder), ram_limit_bytes=1 << 30)

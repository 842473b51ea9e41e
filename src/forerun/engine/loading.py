"""Loads an engine's model, its bank and its decoding steps, within settings and memory. Knows no request and no socket."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import mlx.core as mx

from forerun import machine
from forerun.bank.bank import Bank
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.bank.tier.index import Index
from forerun.bank.tier.quota import check_disk_limit
from forerun.config import Config
from forerun.decode.compiled import NO_COMPILER, StepTable
from forerun.decode.depth import DepthPolicy, policy_for
from forerun.decode.warm_up import warm_up
from forerun.engine.context import context_of
from forerun.engine.model import Model
from forerun.kernels import proof
from forerun.kernels.arithmetic import Arithmetic, is_cpu
from forerun.kernels.buffers import release_buffers
from forerun.kernels.cuda_source import is_cuda
from forerun.kernels.numerics import ARRAYS, VERSION
from forerun.models.base import Family
from forerun.models.fit import MEMORY_FRAC
from forerun.models.load import LoadedModel, load
from forerun.state.layout import Limits, layout_for, limits_of
from forerun.state.record import Identity
from forerun.state.spec import StateSpec
from forerun.text.prompt import Prompter

log = logging.getLogger(__name__)
MLX_CACHE_BYTES = 1 << 30
MAX_RUNNING_CPU, MAX_RUNNING_GPU = 8, 16


def load_model(config: Config, folder: Path, arithmetic: Arithmetic, prompter: Prompter, progress: Callable[[str, float], None]) -> Model:
    """The model of the checkpoint in `folder`, warmed up. Runs on the thread that owns MLX. progress: receives a step and its share done.

    Raises ConfigError, ModelError, BankError, UnsupportedError.
    """
    mx.set_cache_limit(MLX_CACHE_BYTES)
    with ExitStack() as cleanup:
        index = hold(config.bank_path) if config.bank_disk_bytes != 0 else None  # a folder in use is an error before weights are read
        if index:
            cleanup.callback(index.close)
        loaded = load(folder, arithmetic.numerics, arithmetic.dtype, progress)
        context_tokens(config, loaded.family)  # raises for too long a context before the proof, which takes a while
        _prove(loaded.family)
        bank = _bank(config, loaded.family.spec, _identity(loaded, arithmetic, prompter), index)
        cleanup.callback(bank.close)
        model = _model(config, loaded, bank, prompter)
        cleanup.callback(model.steps.release)
        warm_up(model.steps, layout_for("decode", 1, model.limits), model.policy.deepest, progress)
        release_buffers()
        cleanup.pop_all()
    return model


def _prove(family: Family) -> None:
    if family.numerics == ARRAYS:
        proof.prove_row_invariant(family.linear_shapes)
    else:
        proof.prove_once()
    release_buffers()


def _model(config: Config, loaded: LoadedModel, bank: Bank, prompter: Prompter) -> Model:
    steps = StepTable(loaded.family, eager_reason=_eager_reason(config))
    limits = _limits(config, loaded.family)
    return Model(steps, bank, prompter, policy(config, loaded.family), limits, memory_bytes(), max_running(config), loaded.notes)


def _bank(config: Config, spec: StateSpec, identity: Identity, index: Index | None) -> Bank:
    if index is None:
        return Bank(spec, identity, disk=None, secret=secrets.token_bytes(32), ram_limit_bytes=config.bank_ram_bytes)
    with ExitStack() as cleanup:
        disk = DiskTier.of(config, index)
        cleanup.callback(disk.close)  # before the index closes: a thread of the tier may be reconciling what a crash left
        check_disk_limit(config, spec, disk.limit_bytes)
        _log_others(index, identity)
        bank = Bank(spec, identity, disk=disk, secret=secret(config.bank_path), ram_limit_bytes=config.bank_ram_bytes)
        cleanup.pop_all()
    return bank


def _log_others(index: Index, identity: Identity) -> None:
    """Log how many conversations this server cannot use, and what it would have to be started with."""
    for fields, num in index.num_sessions_by_identity():
        differing = [name.replace("_", " ") for name, value in identity.fields.items() if fields.get(name) != value]
        if differing:
            message = "%d stored conversation%s other %s: not used until a server with that starts"
            log.warning(message, num, " has" if num == 1 else "s have", " and ".join(differing))


def _identity(loaded: LoadedModel, arithmetic: Arithmetic, prompter: Prompter) -> Identity:
    numerics = f"{loaded.family.numerics.name} {VERSION}"
    return Identity(loaded.digest, loaded.mtp, prompter.tokenizer.digest, prompter.template.digest, arithmetic.dtype, numerics)


def context_tokens(config: Config, family: Family) -> int:
    """Longest prompt plus answer, given the memory that weights and the bank's RAM quota leave. Raises ConfigError."""
    free_bytes = int(memory_bytes() * MEMORY_FRAC) - mx.get_active_memory() - config.bank_ram_bytes - family.spec.bytes_per_snapshot
    return context_of(config.context, family.context_tokens, family.spec.bytes_per_token, free_bytes)


def policy(config: Config, family: Family) -> DepthPolicy:
    """The draft-depth policy; depth 0 without MTP layers."""
    if not family.spec.draft_layers and config.draft_depth != 0:
        log.warning("the checkpoint has no MTP layers: serving without drafts")
    return policy_for(config.draft_depth if family.spec.draft_layers else 0)


def max_running(config: Config) -> int:
    """How many sequences run at once, memory permitting."""
    return config.max_running or (MAX_RUNNING_CPU if is_cpu() else MAX_RUNNING_GPU)


def memory_bytes() -> int:
    """The device's memory, or the machine's where the device is a CPU or does not report it."""
    own = 0 if is_cpu() else int(mx.device_info().get("memory_size", 0))
    return own or machine.memory_bytes()


def _limits(config: Config, family: Family) -> Limits:
    limits = limits_of(family.spec.bytes_per_token, memory_bytes() // 2)
    # In pages of one pool, several sequences take one launch of each kernel on CUDA; alone they are as fast as contiguous ones.
    dense_tokens = 0 if is_cuda() and max_running(config) > 1 else limits.dense_tokens
    dense = {"auto": dense_tokens, "contiguous": family.context_tokens, "paged": 0}[config.decode_layout]
    return Limits(dense, limits.page_tokens)


def _eager_reason(config: Config) -> str:
    if config.eager:
        return "requested"
    # On a CPU, MLX compiles its fused kernels with g++ at run time.
    return NO_COMPILER if is_cpu() and shutil.which("g++") is None else ""

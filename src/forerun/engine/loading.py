"""The model of an engine, with its bank and its steps, as settings and memory allow. Knows no request and no socket."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
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
from forerun.engine.turn import Model
from forerun.kernels import blas, proof
from forerun.kernels.arithmetic import Arithmetic, is_cpu
from forerun.kernels.numerics import VERSION
from forerun.models.base import Family
from forerun.models.fit import MEMORY_FRAC
from forerun.models.load import LoadedModel, load
from forerun.state.layout import Limits, layout_for, limits_of
from forerun.state.record import Identity
from forerun.text.prompt import Prompter

log = logging.getLogger(__name__)
MLX_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Loading:
    """What a model is made from. folder: of its checkpoint; progress: called with what is being done and how far it is, 0 to 1."""

    config: Config
    folder: Path
    arithmetic: Arithmetic
    prompter: Prompter
    progress: Callable[[str, float], None]

    def run(self) -> Model:
        """The model, warmed up, on the thread that owns MLX. Raises ConfigError, ModelError, BankError, UnsupportedError."""
        numerics, config = self.arithmetic.numerics, self.config
        mx.set_cache_limit(MLX_CACHE_BYTES)
        with ExitStack() as undone:
            index = hold(config.bank_path) if config.bank_disk_bytes != 0 else None  # a folder in use is told before weights are read
            if index:
                undone.callback(index.close)
            model = self._model(load(self.folder, numerics, self.arithmetic.dtype, self.progress), index)
            undone.callback(model.bank.close)
            undone.callback(model.steps.release)
            warm_up(model.steps, layout_for("decode", 1, model.limits), model.policy.deepest, self.progress)
            undone.pop_all()
        return model

    def _model(self, loaded: LoadedModel, index: Index | None) -> Model:
        config, family = self.config, loaded.family
        context(config, family)  # too long a one is told before the proof, which takes a while
        if is_cpu():
            blas.prove_correct(self.arithmetic.blas)
        if self.arithmetic.is_exact:
            blas.prove_row_invariant(self.arithmetic.blas, set(family.linear_shapes))
        else:
            proof.prove_once(self.arithmetic.blas)
        mx.clear_cache()
        bank = self._bank(loaded, index)
        steps = StepTable(family, eager_reason=_eager_reason(config))
        return Model(steps, bank, self.prompter, policy(config, family), _limits(config, family), memory_bytes(), loaded.notes)

    def _bank(self, loaded: LoadedModel, index: Index | None) -> Bank:
        config, spec = self.config, loaded.family.spec
        if index is None:
            return Bank(spec, self._identity(loaded), disk=None, secret=secrets.token_bytes(32), ram_limit_bytes=config.bank_ram_bytes)
        with ExitStack() as undone:
            disk = DiskTier.of(config, index)
            undone.callback(disk.close)  # before the index: a thread of it mends what a crash left
            check_disk_limit(config, spec, disk.limit_bytes)
            bank = Bank(spec, self._identity(loaded), disk=disk, secret=secret(config.bank_path), ram_limit_bytes=config.bank_ram_bytes)
            undone.pop_all()
        return bank

    def _identity(self, loaded: LoadedModel) -> Identity:
        numerics, text = f"{loaded.family.numerics.name} {VERSION}, {self.arithmetic.blas}", self.prompter
        return Identity(loaded.digest, loaded.mtp, text.tokenizer.digest, text.template.digest, self.arithmetic.dtype, numerics)


def context(config: Config, family: Family) -> int:
    """As context_of, by what weights and kept conversations leave of the memory that may be used. Raises ConfigError."""
    free_bytes = int(memory_bytes() * MEMORY_FRAC) - mx.get_active_memory() - config.bank_ram_bytes - family.spec.bytes_per_snapshot
    return context_of(config.context, family.context_tokens, family.spec.bytes_per_token, free_bytes)


def policy(config: Config, family: Family) -> DepthPolicy:
    """How deep to draft: not at all without MTP layers."""
    if not family.spec.draft_layers and config.draft_depth != 0:
        log.warning("the checkpoint has no MTP layers: it is served without drafting")
    return policy_for(config.draft_depth if family.spec.draft_layers else 0)


def memory_bytes() -> int:
    """The device's memory, or the machine's."""
    own = 0 if is_cpu() else int(mx.device_info().get("memory_size", 0))
    return own or machine.memory_bytes()


def _limits(config: Config, family: Family) -> Limits:
    limits = limits_of(family.spec.bytes_per_token, memory_bytes() // 2)
    dense = {"auto": limits.dense_tokens, "contiguous": family.context_tokens, "paged": 0}[config.decode_layout]
    return Limits(dense, limits.page_tokens)


def _eager_reason(config: Config) -> str:
    if config.eager:
        return "requested"
    # On CPU MLX compiles its fused kernels with g++ while it runs.
    return NO_COMPILER if is_cpu() and shutil.which("g++") is None else ""

"""Puts the engine together: numerics, model, bank, worker. Imports MLX, so it is imported last."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import mlx.core as mx

from forerun import machine
from forerun.bank.bank import Bank
from forerun.bank.disk import DiskTier, secret
from forerun.bank.index import Index
from forerun.bank.limits import check_disk_limit, daily_limit, disk_limit
from forerun.config import Config
from forerun.decode.compiled import StepTable, warm_up
from forerun.decode.depth import WARNING, DepthPolicy, policy_for
from forerun.engine.context import context_of
from forerun.engine.defaults import defaults_of
from forerun.engine.local import LocalEngine
from forerun.engine.metrics import Gauges
from forerun.engine.request_log import RequestLog
from forerun.engine.turn import Model
from forerun.engine.worker import Worker
from forerun.errors import ConfigError
from forerun.hub.catalogue import Located, locate
from forerun.kernels import blas
from forerun.kernels.numerics import REFERENCE, SERVED, VERSION
from forerun.models.base import Family
from forerun.models.fit import MEMORY_FRAC
from forerun.models.load import DEMO_MODEL, Loaded, load
from forerun.request_log.file import LogFile
from forerun.state.layout import Limits, layout_for, limits_of
from forerun.state.record import Identity
from forerun.text.gguf import checkpoint_at
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import ModelInfo

log = logging.getLogger(__name__)
MLX_CACHE_BYTES = 1 << 30
NO_COMPILER = "no compiler"


def assemble(config: Config, is_reference: bool, blas_name: str, progress: Callable[[str, float], None]) -> LocalEngine:
    """The engine of these settings. The model is loaded on the worker's thread; returns when it is."""
    located = model_of(config)
    request_log = _request_log(config, located.name)
    try:
        return _engine(config, located, is_reference, blas_name, progress, request_log)
    except BaseException:
        if request_log:
            request_log.file.close()
        raise


def _engine(
    config: Config,
    located: Located,
    is_reference: bool,
    blas_name: str,
    progress: Callable[[str, float], None],
    request_log: RequestLog | None,
) -> LocalEngine:
    (name, folder), archive_key = located, config.archive_key
    prompter = Prompter(Tokenizer.load(folder), Template.load(folder))
    defaults = defaults_of(folder)
    worker = Worker(lambda: _load(config, folder, prompter, is_reference, blas_name, progress))
    model = worker.model()
    context_tokens, notes = _context(config, model.family)
    info = ModelInfo(
        name=name,
        family=model.family.name,
        device="cpu" if is_cpu() else str(mx.default_device()),
        numerics=model.family.numerics.name,
        blas=blas_name,
        context_tokens=context_tokens,
        created_unix_s=int(time.time()),
        defaults=defaults,
        demo=folder == DEMO_MODEL,
        notes=(*model.notes, *notes),
    )
    return LocalEngine(info, prompter, worker, model.family.vocab, lambda: _degraded(model), _gauges(model.bank), request_log, archive_key)


def _gauges(bank: Bank) -> Gauges:
    memory = {"active": mx.get_active_memory, "cache": mx.get_cache_memory, "peak": mx.get_peak_memory}
    return {
        **{f"mlx_{kind}_bytes": (f"MLX memory, {kind}", read) for kind, read in memory.items()},
        "paged_blocks": ("Pages that caches hold", lambda: bank.paged_blocks[0]),
        "paged_blocks_free": ("Pages that nobody holds", lambda: bank.paged_blocks[1]),
    }


def _request_log(config: Config, model: str) -> RequestLog | None:
    if config.request_log_bytes == 0:
        return None
    return RequestLog(LogFile(config.request_log_path, config.request_log_bytes), model, config.request_log_content)


def model_of(config: Config) -> Located:
    """The model of these settings: where it is, and its name. Raises ModelError."""
    name, folder = locate(config.model) if config.model else Located(DEMO_MODEL.name, DEMO_MODEL)
    return Located(name, checkpoint_at(folder))


def is_cpu() -> bool:
    """Whether MLX runs on the CPU."""
    return bool(mx.default_device() == mx.cpu)


def _load(
    config: Config,
    folder: Path,
    prompter: Prompter,
    is_reference: bool,
    blas_name: str,
    progress: Callable[[str, float], None],
) -> Model:
    if is_reference and not is_cpu():
        raise ConfigError("numerics 'reference' runs on CPU only", hint="use --numerics served on this device")
    mx.set_cache_limit(MLX_CACHE_BYTES)
    with ExitStack() as undone:
        index = Index.hold(config.bank_path) if config.bank_disk_bytes != 0 else None  # a folder in use is told before weights are read
        if index:
            undone.callback(index.close)
        model = _model(config, folder, prompter, is_reference, blas_name, index, progress)
        undone.callback(model.steps.release)
        warm_up(model.steps, layout_for("decode", 1, model.limits), model.policy.deepest, progress)
        undone.pop_all()
    return model


def _model(
    config: Config,
    folder: Path,
    prompter: Prompter,
    is_reference: bool,
    blas_name: str,
    index: Index | None,
    progress: Callable[[str, float], None],
) -> Model:
    dtype = "float32" if is_cpu() else "bfloat16"
    loaded = load(folder, REFERENCE if is_reference else SERVED, dtype, progress)
    _context(config, loaded.family)
    if is_cpu():
        blas.prove_correct(blas_name)
    if is_reference:
        blas.prove_row_invariant(blas_name, set(loaded.family.linear_shapes))
    mx.clear_cache()
    bank = _bank(config, loaded, prompter, dtype, blas_name, index)
    steps = StepTable(loaded.family, eager_reason=_eager_reason(config))
    return Model(steps, bank, prompter, _policy(config, loaded.family), _limits(config, loaded.family), loaded.notes)


def _bank(config: Config, loaded: Loaded, prompter: Prompter, dtype: str, blas_name: str, index: Index | None) -> Bank:
    family, path = loaded.family, config.bank_path
    numerics = f"{family.numerics.name} {VERSION}, {blas_name}"
    identity = Identity(loaded.digest, loaded.mtp, prompter.tokenizer.digest, prompter.template.digest, dtype, numerics)
    if index is None:
        return Bank(family.spec, identity, disk=None, secret=secrets.token_bytes(32), ram_limit_bytes=config.bank_ram_bytes)
    limit_bytes = disk_limit(config, index.totals.record_bytes)
    check_disk_limit(config, family.spec, limit_bytes)
    disk = DiskTier(path, limit_bytes=limit_bytes, daily_limit_bytes=daily_limit(config), index=index)
    return Bank(family.spec, identity, disk=disk, secret=secret(path), ram_limit_bytes=config.bank_ram_bytes)


def _context(config: Config, family: Family) -> tuple[int, tuple[str, ...]]:
    """By what weights and kept conversations leave of the memory that may be used."""
    room_bytes = int(memory_bytes() * MEMORY_FRAC) - mx.get_active_memory() - config.bank_ram_bytes - family.spec.bytes_per_mark
    return context_of(config.context, family.context_tokens, family.spec.bytes_per_token, room_bytes)


def _limits(config: Config, family: Family) -> Limits:
    limits = limits_of(family.spec.bytes_per_token, memory_bytes() // 2)
    dense = {"auto": limits.dense_tokens, "contiguous": family.context_tokens, "paged": 0}[config.decode_layout]
    return Limits(dense, limits.page_tokens)


def memory_bytes() -> int:
    """The device's memory, or the machine's."""
    if not is_cpu():
        return int(mx.device_info().get("memory_size", 0)) or machine.memory_bytes()
    return machine.memory_bytes()


def _eager_reason(config: Config) -> str:
    if config.eager:
        return "asked"
    # On CPU MLX compiles its fused kernels with g++ while it runs.
    return NO_COMPILER if is_cpu() and shutil.which("g++") is None else ""


def _policy(config: Config, family: Family) -> DepthPolicy:
    if not family.spec.draft_layers and config.draft_depth != 0:
        log.warning("the checkpoint has no MTP layers: it is served without drafting")
    if not family.spec.draft_layers:
        return policy_for(0)
    return policy_for(config.draft_depth)


def _degraded(model: Model) -> tuple[str, ...]:
    reasons = [f"{count} records could not be written ({reason})" for reason, count in model.bank.skipped.items()]
    if model.policy.acceptance.is_failing:
        reasons.append(WARNING)
    if model.steps.eager_reason == NO_COMPILER:
        reasons.append("steps run eager: MLX compiles them with g++; install it, or say --eager")
    return tuple(reasons)

"""Puts the engine together: model, worker, logs, what it tells of itself. Imports MLX, so it is imported last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import mlx.core as mx

from forerun.bank.bank import Bank
from forerun.config import Config
from forerun.engine.defaults import defaults_of
from forerun.engine.loading import Loading, context
from forerun.engine.local import LocalEngine
from forerun.engine.metrics import Gauges
from forerun.engine.request_recorder import RequestLog
from forerun.engine.worker import Worker
from forerun.hub.catalogue import ModelLocation, locate
from forerun.kernels.arithmetic import Arithmetic, is_cpu
from forerun.models.load import DEMO_MODEL
from forerun.request_log.file import LogFile
from forerun.text.gguf import checkpoint_at
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import ModelInfo

log = logging.getLogger(__name__)


def assemble(config: Config, arithmetic: Arithmetic, progress: Callable[[str, float], None]) -> LocalEngine:
    """The engine of these settings. The model is loaded on the worker's thread; returns when it is."""
    name, folder = model_of(config)
    request_log = _request_log(config, name)
    try:
        loading = Loading(config, folder, arithmetic, Prompter(Tokenizer.load(folder), Template.load(folder)), progress)
        return _engine(name, loading, request_log)
    except BaseException:
        if request_log:
            request_log.file.close()
        raise


def model_of(config: Config) -> ModelLocation:
    """The model of these settings: where it is, and its name. Raises ModelError."""
    name, folder = locate(config.model) if config.model else ModelLocation(DEMO_MODEL.name, DEMO_MODEL)
    return ModelLocation(name, checkpoint_at(folder))


def _engine(name: str, loading: Loading, request_log: RequestLog | None) -> LocalEngine:
    defaults, archive_key = defaults_of(loading.folder), loading.config.archive_key
    worker = Worker(loading.run)
    model = worker.model()
    context_tokens = context(loading.config, model.family)
    if context_tokens < model.family.context_tokens and loading.config.context is None:
        told = "the context is %s of the model's %s tokens, what memory has room for; --context says otherwise"
        log.warning(told, f"{context_tokens:,}", f"{model.family.context_tokens:,}")
    info = ModelInfo(
        name=name,
        family=model.family.name,
        device="cpu" if is_cpu() else str(mx.default_device()),
        numerics=model.family.numerics.name,
        blas=loading.arithmetic.blas,
        context_tokens=context_tokens,
        created_unix_s=int(time.time()),
        defaults=defaults,
        demo=loading.folder == DEMO_MODEL,
        notes=model.notes,
    )
    return LocalEngine(info, worker, gauges_of(model.bank), request_log, archive_key)


def _request_log(config: Config, model: str) -> RequestLog | None:
    if config.request_log_bytes == 0:
        return None
    return RequestLog(LogFile(config.request_log_path, config.request_log_bytes), model, config.request_log_content)


def gauges_of(bank: Bank) -> Gauges:
    """What /metrics tells of MLX's memory, of pages, and of what the disk did not take."""
    memory = {"active": mx.get_active_memory, "cache": mx.get_cache_memory, "peak": mx.get_peak_memory}
    return {
        **{f"mlx_{kind}_bytes": (f"MLX memory, {kind}", read) for kind, read in memory.items()},
        "paged_blocks": ("Pages that caches hold", lambda: bank.paged_blocks[0]),
        "bank_unwritten_records": ("Records that could not be written, since the start", lambda: bank.stats.num_unwritten),
        "paged_blocks_free": ("Pages that nobody holds", lambda: bank.paged_blocks[1]),
    }

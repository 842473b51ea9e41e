"""Assembles the engine: model, worker, request log, gauges. Imports MLX, so import it last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread

import mlx.core as mx

from forerun.bank.bank import Bank
from forerun.config import Config
from forerun.engine.defaults import defaults_of
from forerun.engine.loading import context_tokens, load_model
from forerun.engine.local import LocalEngine
from forerun.engine.metrics import Gauges
from forerun.engine.model import Model
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
from forerun.values import AnswerRules, ModelInfo, Sampling

log = logging.getLogger(__name__)


def assemble(config: Config, arithmetic: Arithmetic, progress: Callable[[str, float], None]) -> LocalEngine:
    """The engine of these settings. The worker's thread loads the model; returns once it is loaded."""
    name, folder = model_of(config)
    request_log = _request_log(config, name)
    try:
        defaults, archive_key = defaults_of(folder), config.archive_key
        prompter = Prompter(Tokenizer.load(folder), Template.load(folder))
        worker = Worker(lambda: load_model(config, folder, arithmetic, prompter, progress))
        info = _info(config, ModelLocation(name, folder), worker.model(), defaults, arithmetic.kernels)
        engine = LocalEngine(info, worker, gauges_of(worker.model().bank), request_log, archive_key)
        Thread(target=engine.grammars.load, name="vocabulary", daemon=True).start()  # the first request with tools would wait for it
        return engine
    except BaseException:
        if request_log:
            request_log.file.close()
        raise


def model_of(config: Config) -> ModelLocation:
    """Name and folder of the model of these settings. Raises ModelError."""
    name, folder = locate(config.model) if config.model else ModelLocation(DEMO_MODEL.name, DEMO_MODEL)
    return ModelLocation(name, checkpoint_at(folder))


def _info(config: Config, location: ModelLocation, model: Model, defaults: Sampling, kernels: str) -> ModelInfo:
    num_tokens = context_tokens(config, model.family)
    if num_tokens < model.family.context_tokens and config.context is None:
        message = "the context is %s of the model's %s tokens, since memory holds no more; set --context to override"
        log.warning(message, f"{num_tokens:,}", f"{model.family.context_tokens:,}")
    return ModelInfo(
        name=location.name,
        family=model.family.name,
        device="cpu" if is_cpu() else str(mx.default_device()),
        numerics=model.family.numerics.name,
        kernels=kernels,
        context_tokens=num_tokens,
        created_unix_s=int(time.time()),
        defaults=defaults,
        demo=location.folder == DEMO_MODEL,
        notes=model.notes,
        rules=AnswerRules(config.max_thinking_tokens, config.enforce_calls, config.break_loops),
    )


def _request_log(config: Config, model: str) -> RequestLog | None:
    if config.request_log_bytes == 0:
        return None
    return RequestLog(LogFile(config.request_log_path, config.request_log_bytes), model, config.request_log_content)


def gauges_of(bank: Bank) -> Gauges:
    """Gauges of MLX's memory, of cache pages, and of records that were not written."""
    memory = {"active": mx.get_active_memory, "cache": mx.get_cache_memory, "peak": mx.get_peak_memory}
    return {
        **{f"mlx_{kind}_bytes": (f"MLX memory, {kind}", read) for kind, read in memory.items()},
        "paged_blocks": ("Pages in use by caches", lambda: bank.paged_blocks[0]),
        "paged_blocks_free": ("Free pages", lambda: bank.paged_blocks[1]),
        "bank_unwritten_records": ("Records that could not be written since the start", lambda: bank.stats.num_unwritten),
    }

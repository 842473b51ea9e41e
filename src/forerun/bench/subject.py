"""The measured model, loaded in this process as a server would load it, without a bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.config import Config, prepare
from forerun.errors import UnsupportedError
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from forerun.models.base import Family


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A loaded model with tokenizer and prompter. kernels: who computes."""

    name: str
    digest: str
    family: Family
    tokenizer: Tokenizer
    prompter: Prompter
    kernels: str


def load(config: Config) -> BenchModel:
    """The model of these settings. Nothing may have imported mlx.core yet.

    Raises ConfigError, ModelError; UnsupportedError without a draft head.
    """
    prepare(config)
    from forerun.engine.assemble import model_of
    from forerun.kernels import arithmetic
    from forerun.models import load as models

    chosen = arithmetic.here()
    name, folder = model_of(config)
    loaded, tokenizer = models.load(folder, chosen.numerics, chosen.dtype, lambda doing, done_frac: None), Tokenizer.load(folder)
    if not loaded.family.spec.draft_layers:
        raise UnsupportedError(f"{name} has no MTP layers: there is nothing to compare")
    return BenchModel(name, loaded.digest, loaded.family, tokenizer, Prompter(tokenizer, Template.load(folder)), chosen.kernels)

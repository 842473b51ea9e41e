"""What is measured: a model in this process, loaded as a server would load it, without a bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.config import Config, prepare
from forerun.engine.start import is_reference, runs_on_cpu
from forerun.errors import UnsupportedError
from forerun.kernels import blas
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from forerun.models.base import Family


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model, and what it runs with."""

    name: str
    digest: str
    family: Family
    tokenizer: Tokenizer
    prompter: Prompter
    blas: str


def load(config: Config) -> Subject:
    """The model of these settings. Nothing may have imported mlx.core before. Raises ModelError; UnsupportedError without a draft head."""
    prepare(config)
    blas_name = blas.load(config.blas, row_invariant=is_reference(config))
    from forerun.engine.assemble import model_of
    from forerun.kernels.numerics import REFERENCE, SERVED
    from forerun.models import load as models

    name, folder = model_of(config)
    numerics, dtype = REFERENCE if is_reference(config) else SERVED, "float32" if runs_on_cpu() else "bfloat16"
    loaded, tokenizer = models.load(folder, numerics, dtype, lambda doing, done_frac: None), Tokenizer.load(folder)
    if not loaded.family.spec.draft_layers:
        raise UnsupportedError(f"{name} has no MTP layers: there is nothing to compare")
    return Subject(name, loaded.digest, loaded.family, tokenizer, Prompter(tokenizer, Template.load(folder)), blas_name)

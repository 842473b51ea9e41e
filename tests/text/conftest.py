from pathlib import Path

import pytest

import forerun
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import TokenLogprob

DEMO_MODEL = Path(forerun.__file__).parent / "data" / "demo-model"


def no_logprobs(start: int, stop: int) -> tuple[TokenLogprob, ...]:
    """The logprobs of content when none were requested."""
    return ()


@pytest.fixture(scope="session")
def folder() -> Path:
    return DEMO_MODEL


@pytest.fixture
def tokenizer() -> Tokenizer:
    """A tokenizer with empty caches."""
    return Tokenizer.load(DEMO_MODEL)


@pytest.fixture(scope="session")
def template() -> Template:
    return Template.load(DEMO_MODEL)

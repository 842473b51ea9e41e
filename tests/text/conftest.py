from pathlib import Path

import pytest

import forerun
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer

DEMO_MODEL = Path(forerun.__file__).parent / "data" / "demo-model"


@pytest.fixture(scope="session")
def folder() -> Path:
    return DEMO_MODEL


@pytest.fixture
def tokenizer() -> Tokenizer:
    """A tokenizer that remembers nothing yet."""
    return Tokenizer.load(DEMO_MODEL)


@pytest.fixture(scope="session")
def template() -> Template:
    return Template.load(DEMO_MODEL)

"""The bundled model is the one that was delivered, byte for byte: its figures and reference outputs are of no other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "src" / "forerun" / "data" / "demo-model"

SHA256 = {
    "chat_template.jinja": "548d68ad0dd6ecffb586f109c9207883b956aec31920fc0db8a7b23a59fed54a",
    "config.json": "db899b359a26ad3ae764366f1837f6a2605c66efb2c40d187b943304e9dca062",
    "generation_config.json": "a4703dffb8bfc995558514675868e6f5b807e97f5397ad783c46a52d943a1036",
    "model.safetensors": "c11fc29dcc71c87581cfaee306e60e7d9768e365dee538bc56fc884d7c6848e9",
    "reference.json": "c06812fdfc5bd96c27493e5849af7f7f9e55c3503409208e4fd0f7e5a3e38388",
    "tokenizer.json": "e1d39530446361dcc43f5c18a07e1ffe659053b605b9f32fe53fc47d89258aeb",
    "tokenizer_config.json": "d978d300b6813a56c25d55458b3c0337afda17e55ad6bf3352c6f96756b620db",
}


@pytest.mark.parametrize("name", SHA256)
def test_is_as_delivered(name: str) -> None:
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SHA256[name]

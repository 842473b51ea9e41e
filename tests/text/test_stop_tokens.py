"""Each source alone names stop tokens; together they name all of them; a model without any is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gguf import TEMPLATE
from tokenizers import Tokenizer

from forerun.errors import ModelError
from forerun.models.load import DEMO_MODEL
from forerun.text.stop_tokens import stop_ids

TEXT_END, TURN_END = 8183, 8185
SOURCES: list[tuple[str, dict[str, Any], set[int]]] = [
    ("generation_config.json", {"eos_token_id": [TEXT_END, TURN_END]}, {TEXT_END, TURN_END}),
    ("config.json", {"eos_token_id": TEXT_END}, {TEXT_END}),
    ("config.json", {"text_config": {"eos_token_id": TEXT_END}}, {TEXT_END}),
    ("tokenizer_config.json", {"eos_token": "<|im_end|>"}, {TURN_END}),
    ("tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}}, {TURN_END}),
    ("tokenizer_config.json", {"chat_template": TEMPLATE}, {TURN_END}),
    ("tokenizer_config.json", {"chat_template": "{{ raise_exception('no') }}", "eos_token": "<|endoftext|>"}, {TEXT_END}),
    (
        "tokenizer_config.json",
        {"chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}", "eos_token": "<|im_end|>"},
        {TURN_END},
    ),
]
LIBRARY = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


@pytest.mark.parametrize(("name", "value", "expected"), SOURCES)
def test_one_source(tmp_path: Path, name: str, value: dict[str, Any], expected: set[int]) -> None:
    (tmp_path / name).write_text(json.dumps(value))
    assert stop_ids(LIBRARY, tmp_path) == expected


def test_all_sources_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": TEXT_END}))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert stop_ids(LIBRARY, tmp_path) == {TEXT_END, TURN_END}


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}\n{% endfor %}"])
def test_no_stop_token(tmp_path: Path, template: str | None) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<not in the vocabulary>"}))
    with pytest.raises(ModelError, match="names no token that ends an answer"):
        stop_ids(LIBRARY, tmp_path)

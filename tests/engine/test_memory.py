"""What a load computes besides the model leaves no memory behind."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.models.load import DEMO_MODEL

OVERHEAD_BYTES = 64 << 20
# A proof and a warm-up that free 128 MB each, in pieces that glibc takes from its heap, between pieces that are not freed.
LOAD = """
import re, sys
from pathlib import Path
import mlx.core as mx
from forerun.config import Config, prepare
prepare(Config.model_validate({"bank_disk_bytes": 0}))
from forerun.engine import loading
from forerun.kernels import arithmetic
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

kept = []

def litter(*_):
    pieces = [mx.zeros((1 << 14,)) + i for i in range(2048)]
    mx.eval(pieces)
    kept.extend(pieces[::64])

litters = sys.argv[1]
loading.proof.prove_once = litter if litters == "proof" else lambda: None
if litters == "warm-up":
    loading.warm_up = litter
prompter = Prompter(Tokenizer.load(DEMO_MODEL), Template.load(DEMO_MODEL))
before = resident()
model = loading.load_model(Config.model_validate({"bank_disk_bytes": 0}), DEMO_MODEL, arithmetic.here(), prompter, lambda doing, frac: None)
print(resident() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
@pytest.mark.parametrize("litters", ["proof", "warm-up"])
def test_a_loaded_model_takes_little_more_than_its_weights(litters: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, litters], check=True, capture_output=True, text=True)
    assert int(done.stdout) < weight_bytes(DEMO_MODEL) + OVERHEAD_BYTES


def weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

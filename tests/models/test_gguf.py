"""A Llama in a GGUF file equals that of a folder, in every format that of its dequantised weights; unreadable files are reported."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from tests import families, gguf, tiny
from tests.families import VOCAB, loaded
from tests.running import empty, step

from forerun.errors import ModelError, UnsupportedError
from forerun.kernels import cpu
from forerun.kernels.blocks import FORMATS
from forerun.models import load as load_module
from forerun.models.gguf import GgufFile

TOKENS = [token % VOCAB for token in tiny.words("gguf", 40)]


def logits(path: Path) -> mx.array:
    family = loaded(path).family
    return step(family, empty(family), TOKENS)


def test_the_same_model_as_in_a_folder(tmp_path: Path) -> None:
    hub = families.write_hub(tmp_path / "hub", "llama", families.tensors("llama"))
    assert float(mx.abs(logits(gguf.write(tmp_path / "small.gguf")) - logits(hub)).max()) < 1e-4


def test_factors_of_long_contexts(tmp_path: Path) -> None:
    file, factors = gguf.write(tmp_path / "small.gguf"), mx.linspace(1.0, 8.0, families.DIM // 2)
    gguf.save(tmp_path / "long.gguf", gguf.llama() | {"rope_freqs.weight": gguf.plain(factors)}, {})
    assert float(mx.abs(logits(tmp_path / "long.gguf") - logits(file)).max()) > 1e-2
    periods = loaded(tmp_path / "long.gguf").family.config.rope.periods
    assert mx.allclose(periods, loaded_periods() * factors)


def loaded_periods() -> mx.array:
    return mx.power(10000.0, mx.arange(0, families.DIM, 2, dtype=mx.float32) / families.DIM)


def test_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="architecture 'mamba' cannot be read"):
        GgufFile.find(gguf.write(tmp_path / "other.gguf", general__architecture="mamba"))


def test_unsupported_rope_scaling(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="rope_type 'yarn' is not supported"):
        loaded(gguf.write(tmp_path / "other.gguf", llama__rope__scaling__type="yarn"))


# Query, key and value of one format, of three, and plain ones among them.
MIXTURES = {
    "two": {"attn_v": "q5_1", "ffn_down": "q6_k", "": "q4_0"},
    "three": {"attn_k": "q5_0", "attn_q": "q4_1", "attn_v": "q8_0", "ffn_up": "q5_1", "ffn_down": "q3_k"},
}
CASES = {name: {"": name} for name in FORMATS} | MIXTURES


def difference(path: Path, tensors: dict[str, gguf.Stored]) -> float:
    """The largest difference of logits from those of the same weights in float32."""
    plain = gguf.save(path / "plain.gguf", {name: gguf.dequantised(stored) for name, stored in tensors.items()}, {})
    expected, actual = logits(plain), logits(gguf.save(path / "blocks.gguf", tensors, {}))
    assert float(mx.abs(expected).max()) > 1  # there is something to compare
    return float(mx.abs(actual - expected).max())


@pytest.mark.skipif(cpu.extension() is None, reason="the CPU kernels are not built")
@pytest.mark.parametrize("formats", CASES.values(), ids=CASES)
def test_blocks_have_the_bits_of_their_weights(tmp_path: Path, formats: dict[str, str]) -> None:
    assert difference(tmp_path, gguf.llama(**formats)) == 0.0


@pytest.mark.usefixtures("without_cpu_kernels")
@pytest.mark.parametrize("formats", CASES.values(), ids=CASES)
@pytest.mark.parametrize("limit_bytes", [0, 1 << 40], ids=["packed", "dense"])
def test_blocks_without_kernels(tmp_path: Path, formats: dict[str, str], limit_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "dense_limit_bytes", lambda: limit_bytes)
    assert difference(tmp_path, gguf.llama(**formats)) < 1e-3


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_plain_matrices_in_16_bits(tmp_path: Path, dtype: mx.Dtype) -> None:
    halves = {gguf.their_name(n): gguf.plain(gguf.turned(n, t).astype(dtype)) for n, t in families.tensors("llama").items()}
    hub = families.write_hub(tmp_path / "hub", "llama", {name: t.astype(dtype) for name, t in families.tensors("llama").items()})
    assert float(mx.abs(logits(gguf.save(tmp_path / "small.gguf", halves, {})) - logits(hub)).max()) < 1e-4


@pytest.mark.skipif(cpu.extension() is None, reason="the CPU kernels are not built")
def test_blocks_are_not_widened(tmp_path: Path) -> None:
    file = gguf.save(tmp_path / "small.gguf", gguf.llama(ffn="q4_k", attn="q4_0", token="q8_0"), {})
    model = loaded(file)
    layer = model.family._layers[0]
    assert sum(a.nbytes for a in layer.mlp.down.arrays()) == families.HIDDEN * 144
    assert sum(a.nbytes for a in layer.qkv.arrays()) == (families.HEADS + 2 * families.KV_HEADS) * families.DIM * families.HIDDEN // 32 * 18
    assert model.notes[0] == "quantised matrices used as they are: 8 of Q4_0, 5 of Q8_0, 2 of Q4_K"


def test_a_digest_covers_the_blocks(tmp_path: Path) -> None:
    tensors = gguf.llama(ffn_up="q4_0")
    first = loaded(gguf.save(tmp_path / "one.gguf", tensors, {})).digest
    name, stored = next((name, stored) for name, stored in tensors.items() if "ffn_up" in name)
    changed = tensors | {name: stored._replace(data=stored.data[:-1] + bytes([stored.data[-1] ^ 1]))}
    assert loaded(gguf.save(tmp_path / "other.gguf", changed, {})).digest != first


def test_a_matrix_of_another_size(tmp_path: Path) -> None:
    wrong = {"blk.0.ffn_up.weight": gguf.in_blocks("q4_0", (families.FFN, 2 * families.HIDDEN))}
    with pytest.raises(ModelError, match=r"wrong shape: model.layers.0.mlp.up_proj.q4_0: \[256, 144\] instead of \[256, 72\]"):
        loaded(gguf.save(tmp_path / "wrong.gguf", gguf.llama() | wrong, {}))


def test_a_tensor_under_two_names(tmp_path: Path) -> None:
    twice = {"model.norm.weight": gguf.plain(mx.ones(families.HIDDEN))}
    with pytest.raises(ModelError, match=r"two tensors are model\.norm\.weight"):
        loaded(gguf.save(tmp_path / "twice.gguf", gguf.llama() | twice, {}))


def test_tensors_that_are_cut_off(tmp_path: Path) -> None:
    file = gguf.write(tmp_path / "small.gguf")
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"small\.gguf cannot be read as GGUF: it ends at byte"):
        loaded(file)

"""Tokenizer, template and stop tokens of a GGUF file equal those of a folder; damaged files are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import gguf

from forerun.errors import ModelError, UnsupportedError
from forerun.kernels.blocks import FORMATS
from forerun.models.load import DEMO_MODEL
from forerun.text.files import exists, read_object, read_text
from forerun.text.gguf import TYPES, checkpoint_at, read_head
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

TEXTS = ["Hello world 123!", "don't  stop\n\n  café", "cafe\u0301 नमस्ते 12345", "<|im_start|>user\nx<|im_end|>\n<think>", "\t\r\n 🦙"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf.write(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_equals_the_folders(file: Path, text: str) -> None:
    ours, theirs = Tokenizer.load(file), Tokenizer.load(DEMO_MODEL)
    assert ours.encode(text, tenant="") == theirs.encode(text, tenant="")
    assert ours.decode(ours.encode(text, tenant="")) == theirs.decode(theirs.encode(text, tenant=""))


def test_the_template_and_the_stop_tokens(file: Path) -> None:
    chat = Chat(({"role": "user", "content": "Hello"},), (), {})
    assert Template.load(file).render(chat, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"
    tokenizer = Tokenizer.load(file)
    assert tokenizer.stop_ids == {8183, 8185}  # declared; and by the template
    assert tokenizer.decode(sorted(tokenizer.stop_ids)) == "<|endoftext|><|im_end|>"


def test_the_files_of_the_folder_that_it_replaces(file: Path) -> None:
    assert exists(file / "tokenizer.json")
    assert read_text(file / "tokenizer.json").startswith("{")
    assert not exists(file / "chat_template.jinja")
    assert read_object(file / "config.json") == {}
    assert read_object(file / "generation_config.json") == {"eos_token_id": [8183]}


def test_metadata(file: Path) -> None:
    metadata = read_head(file).metadata
    assert (metadata["general.architecture"], metadata["llama.block_count"], metadata["llama.rope.freq_base"]) == ("llama", 2, 10000.0)
    assert metadata["tokenizer.ggml.tokens"] == gguf.vocabulary()["tokenizer.ggml.tokens"]


def test_the_one_file_of_a_folder(file: Path, tmp_path: Path) -> None:
    assert checkpoint_at(file.parent) == file
    assert checkpoint_at(file) == file
    assert checkpoint_at(DEMO_MODEL) == DEMO_MODEL
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="holds 2 GGUF files") as caught:
        checkpoint_at(tmp_path)
    assert str(tmp_path / "a.gguf") in caught.value.hint


@pytest.mark.parametrize("name", ["", "notes.txt"])
def test_what_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelError, match="is no model") as caught:
        checkpoint_at(tmp_path / name)
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize(("pre", "kind"), [("tekken", "gpt2"), ("qwen35", "llama")])
def test_a_vocabulary_of_another_kind(tmp_path: Path, pre: str, kind: str) -> None:
    file = gguf.write(tmp_path / "other.gguf", tokenizer__ggml__pre=pre, tokenizer__ggml__model=kind)
    with pytest.raises(UnsupportedError, match=rf"kind '{kind}', split as '{pre}'"):
        Tokenizer.load(file)


@pytest.mark.parametrize("num_bytes", [0, 3, 20, 1000, 100_000])
def test_a_file_that_is_cut_off(file: Path, tmp_path: Path, num_bytes: int) -> None:
    part = tmp_path / "part.gguf"
    part.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        Tokenizer.load(part)


def test_impossible_lengths(file: Path, tmp_path: Path) -> None:
    whole, key = bytearray(file.read_bytes()), b"tokenizer.ggml.tokens"
    at = whole.index(key) + len(key) + 8  # after the types of the value and of its elements
    whole[at : at + 8] = (1 << 60).to_bytes(8, "little")
    part = tmp_path / "part.gguf"
    part.write_bytes(whole)
    with pytest.raises(ModelError, match="an array of 1152921504606846976 values"):
        Tokenizer.load(part)


def test_tensors(file: Path) -> None:
    tensors, stored = read_head(file).tensors, gguf.llama()
    assert {name: entry.shape for name, entry in tensors.items()} == {name: tensor.shape for name, tensor in stored.items()}
    whole = file.read_bytes()
    assert all(whole[entry.start : entry.stop] == stored[name].data for name, entry in tensors.items())


def test_types_are_those_of_the_kernels() -> None:
    kernels = {name.upper(): (form.num_weights, form.num_bytes) for name, form in FORMATS.items()}
    assert kernels == {type.name: type[1:] for type in TYPES.values() if type.num_weights > 1}


def damaged(file: Path, target: Path, name: str, at: int, code: str, value: int) -> Path:
    """The file with another number at byte `at` after the name of a matrix: dims at 4 and 12, type at 20, offset at 24."""
    whole = bytearray(file.read_bytes())
    struct.pack_into(f"<{code}", whole, whole.index(name.encode()) + len(name) + at, value)
    target.write_bytes(whole)
    return target


@pytest.mark.parametrize(
    ("at", "code", "value", "message"),
    [
        (0, "I", 5, "blk.0.ffn_up.weight has 5 dimensions"),
        (0, "I", 0, "blk.0.ffn_up.weight has 0 dimensions"),
        (4, "Q", 0, r"blk.0.ffn_up.weight is \[256, 0\], whose rows are no whole blocks of F32"),
        (12, "Q", 1 << 62, "it ends at byte .* before the end of blk.0.ffn_up.weight"),
        (24, "Q", 1 << 63, "it ends at byte .* before the end of blk.0.ffn_up.weight"),
        (24, "Q", 32, "overlap"),
        (20, "I", 23, "blk.0.ffn_up.weight has weights of type 23, which cannot be read"),
    ],
)
def test_impossible_tensors(file: Path, tmp_path: Path, at: int, code: str, value: int, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_head(damaged(file, tmp_path / "damaged.gguf", "blk.0.ffn_up.weight", at, code, value))
    assert "damaged.gguf" in str(caught.value)
    assert caught.value.hint


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    tensors = gguf.llama() | {"blk.0.ffn_up.weight": gguf.Stored("Q6_K", (256, 128), bytes(210 * 128))}
    with pytest.raises(ModelError, match="no whole blocks of Q6_K"):
        read_head(gguf.save(tmp_path / "damaged.gguf", tensors, {}))


def test_two_tensors_of_one_name(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes().replace(b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight")
    (tmp_path / "damaged.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match=r"two tensors are blk\.1\.ffn_up\.weight"):
        read_head(tmp_path / "damaged.gguf")


@pytest.mark.parametrize("alignment", [np.uint32(0), "32"])
def test_impossible_alignments(tmp_path: Path, alignment: Any) -> None:
    with pytest.raises(ModelError, match="its alignment is"):
        read_head(gguf.write(tmp_path / "damaged.gguf", general__alignment=alignment))


def test_another_alignment(tmp_path: Path) -> None:
    head = read_head(gguf.write(tmp_path / "other.gguf", general__alignment=np.uint32(8)))
    assert all(entry.start % 8 == 0 for entry in head.tensors.values())

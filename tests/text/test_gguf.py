"""Tokenizer, template and stop tokens of a GGUF file equal those of a folder; damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import gguf

from forerun.errors import ModelError, UnsupportedError
from forerun.models.load import DEMO_MODEL
from forerun.text.files import exists, read_object, read_text
from forerun.text.gguf import checkpoint_at, read_metadata
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
    metadata = read_metadata(file)
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

"""Real vocabularies give the published ids, and real templates the published prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import pytest
import tokenizers
from tests.real.conftest import QwenTokenizer
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from forerun.demo.conversation import package_sources
from forerun.errors import ModelError
from forerun.text.control_tokens import ControlTokenEscaper
from forerun.text.gguf_files import SPLITS
from forerun.text.reasoning import THINK
from forerun.text.template import Template
from forerun.text.template_adapter import TemplateAdapter
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

pytestmark = pytest.mark.real
BETWEEN = "\n__ggml_vocab_test__\n"
# The characters in which byte-level vocabularies write bytes.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(0x100 + i) for i, byte in enumerate(OTHERS)}
TEXTS = [
    "",
    "Grüße aus Köln, 12345 mal!",
    "cafe\u0301 नमस्ते สวัสดี 你好世界 مرحبا שלום 🦙🏽",
    "\tdef f(x):\r\n\treturn  x   \n\n\n",
    "<|im_start|>user\nIt's 2026; DON'T.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nx<|im_end|>",
]


@pytest.mark.parametrize("name", ["qwen35", "qwen2", "llama-bpe", "gpt-2"])
def test_published_ids(llama_cpp: Path, name: str) -> None:
    """The vectors that come with llama.cpp; it does not compose characters as Qwen's makers do, so that these are left out."""
    file = llama_cpp / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{file}.inp").read_text(encoding="utf-8").split(BETWEEN)[:-1]
    wanted = [[int(id) for id in line.split()] for line in Path(f"{file}.out").read_text().splitlines()]
    tokenizer = Tokenizer.load(file)
    composed = [(text, ids) for text, ids in zip(texts, wanted, strict=True) if is_normalized("NFC", text)]
    assert len(composed) > 40
    assert [tokenizer.encode(text, tenant="") for text, _ in composed] == [ids for _, ids in composed]


@pytest.fixture(scope="module")
def qwen3_5(qwen_tokenizer: QwenTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Qwen3.5's vocabulary as a tokenizer.json."""
    vocabulary = qwen_tokenizer.vocabulary()
    mapped = {token: _as_chars(token) for token in vocabulary}
    library = tokenizers.Tokenizer(BPE({mapped[token]: rank for token, rank in vocabulary.items()}, list(_merges(vocabulary, mapped))))
    library.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(SPLITS["qwen35"][0]), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in qwen_tokenizer.specials()])
    folder = tmp_path_factory.mktemp("qwen3_5")
    library.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [248_046, 248_044]}))
    return Tokenizer.load(folder)


def test_ids_of_the_makers(qwen3_5: Tokenizer, qwen_tokenizer: QwenTokenizer) -> None:
    """What the makers' own package makes of code, of many scripts and of a conversation."""
    texts = [*TEXTS, *list(package_sources().values())[:20]]
    assert [qwen3_5.encode(text, tenant="") for text in texts] == qwen_tokenizer.encode(texts)
    assert qwen3_5.encode("<|endoftext|><|im_start|><|im_end|><think></think><tool_call>", tenant="") == [
        248_044, 248_045, 248_046, 248_068, 248_069, 248_058
    ]  # fmt: skip
    assert qwen3_5.size == 248_077


def _as_chars(token: bytes) -> str:
    return "".join(BYTES[byte] for byte in token)


def _merges(vocabulary: dict[bytes, int], mapped: dict[bytes, str]) -> Iterator[tuple[str, str]]:
    """The two parts that each token was last made of, in the order of ranks, as the vocabulary's ranks imply them."""
    for token, rank in sorted(vocabulary.items(), key=lambda item: item[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            ranks = [vocabulary.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
            at = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[at] >= rank:
                break  # a token that no merge leads to
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield mapped[parts[0]], mapped[parts[1]]


def rendered(llama_cpp: Path, name: str, messages: list[dict[str, Any]], tools: tuple[dict[str, Any], ...] = (), **args: Any) -> str:
    template = Template((llama_cpp / "templates" / f"{name}.jinja").read_text(encoding="utf-8"), {"bos_token": "<|begin_of_text|>"})
    return template.render(Chat(tuple(messages), tools, args), add_generation_prompt=True)


HELLO = [{"role": "user", "content": "Hello"}]
CALL = {"type": "function", "function": {"name": "read", "arguments": {"path": "a.py"}}}
CALLED = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "x = 1"}]
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}


def test_qwen3_5(llama_cpp: Path) -> None:
    hello = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(llama_cpp, "Qwen3.5-4B", HELLO) == f"{hello}<think>\n"
    assert rendered(llama_cpp, "Qwen3.5-4B", HELLO, enable_thinking=False) == f"{hello}<think>\n\n</think>\n\n"
    called = rendered(llama_cpp, "Qwen3.5-4B", CALLED, (READ,))
    assert "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call><|im_end|>\n" in called
    assert "<|im_start|>user\n<tool_response>\nx = 1\n</tool_response><|im_end|>\n" in called
    assert '<tools>\n{"type": "function", "function": {"name": "read"' in called


def test_llama_3(llama_cpp: Path) -> None:
    text = rendered(llama_cpp, "meta-llama-Llama-3.2-3B-Instruct", HELLO, date_string="26 Jul 2024")
    assert text.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n")
    assert text.endswith("<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "HuggingFaceTB-SmolLM3-3B", "Qwen-Qwen2.5-7B-Instruct"])
def test_other_chatml_templates(llama_cpp: Path, name: str) -> None:
    assert "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n" in rendered(llama_cpp, name, HELLO)


SYSTEM, QUESTION, NAMED = "Be brief.\n 'Yes' or <no>", "What ends it?", "The pair <think> and </think> tags it."
LATE = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": NAMED},
    {"role": "system", "content": "Files changed.\n  a.py"},
    {"role": "user", "content": "And then?"},
]


def templates(llama_cpp: Path) -> Iterator[tuple[str, Template]]:
    """Every template of the folder that compiles and renders a question."""
    for file in sorted(llama_cpp.glob("templates/*.jinja")):
        try:
            template = Template(file.read_text(encoding="utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
        except ModelError:
            continue  # a tag of the makers' own library
        if template.attempt(Chat(tuple(HELLO), (), {}), add_generation_prompt=True):
            yield file.stem, template


def test_texts_keep_their_places_in_every_template(llama_cpp: Path) -> None:
    """System texts too that a template would move or drop, and reasoning tags in an answer that it would split at."""
    failed, num = [], 0
    for name, template in templates(llama_cpp):
        chat, escape_char = ControlTokenEscaper((), THINK).escape(TemplateAdapter(template).adapt(Chat(tuple(LATE), (READ,), {}))[0])
        text = template.render(chat, add_generation_prompt=True).replace(escape_char, "")
        starts = [text.find(str(message["content"])) for message in LATE]
        failed += [name] if -1 in starts or starts != sorted(starts) else []
        num += 1
    assert failed == []
    assert num > 50


def test_the_stop_token_of_smollm2(smollm2: Path) -> None:
    (file,) = smollm2.glob("*.gguf")
    tokenizer = Tokenizer.load(file)
    assert tokenizer.decode(sorted(tokenizer.stop_ids)) == "<|im_end|>"

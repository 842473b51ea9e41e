"""The text files of a checkpoint folder, derived from the metadata of a GGUF file: tokenizer, template, stop tokens.

Knows byte-level BPE vocabularies, and the pre-tokenizers under the names that llama.cpp gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from forerun.errors import ModelError, UnsupportedError
from forerun.text.gguf import read_head

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = r"|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}{digits}| ?[^\s{combining}\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = CONTRACTIONS + MODERN.format(letters=r"\p{L}", digits="", combining="")
# Regexes of a pre-tokenizer, applied one after the other.
SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT_2,),
    "smollm": (r"\p{N}", GPT_2),
    "qwen2": (QWEN_2,),
    "qwen35": (CONTRACTIONS + MODERN.format(letters=r"[\p{L}\p{M}]", digits="", combining=r"\p{M}"),),
    "llama-bpe": (CONTRACTIONS + MODERN.format(letters=r"\p{L}", digits="{1,3}", combining=""),),
}
NFC = ("qwen2", "qwen35")  # text is normalised to it
WHOLE_WORDS = ("llama-bpe",)  # a word in the vocabulary is not merged from its bytes
CONTROL, USER_DEFINED = 3, 4
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def text_files(path: Path) -> Mapping[str, str]:
    """The contents of the files by name. Raises ModelError, UnsupportedError (a vocabulary of another kind)."""
    return _derive(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _derive(path: Path, changed_ns: int) -> Mapping[str, str]:
    metadata = read_head(path).metadata
    try:
        return {
            "tokenizer.json": _tokenizer(metadata, path).to_str(),
            "tokenizer_config.json": json.dumps(_tokenizer_config(metadata)),
            "generation_config.json": json.dumps({"eos_token_id": _stop_ids(metadata)}),
        }
    except KeyError as error:
        raise ModelError(f"{path} lacks {error.args[0]!r}", hint="it has no vocabulary, or an incomplete one") from error


def _tokenizer(metadata: Mapping[str, Any], path: Path) -> tokenizers.Tokenizer:
    kind, variant = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or variant not in SPLITS:
        hint = f"byte-level BPE (gpt2) is read, split as in {', '.join(sorted(SPLITS))}"
        raise UnsupportedError(f"{path}: a vocabulary of kind {kind!r}, split as {variant!r}, cannot be read", hint=hint)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    library = tokenizers.Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=variant in WHOLE_WORDS))
    if variant in NFC:
        library.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[variant]]
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    library.add_tokens(
        [AddedToken(token, normalized=False, special=kind == CONTROL) for token, kind in kinds if kind in (CONTROL, USER_DEFINED)]
    )
    return library


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in NAMED.items()}
    named = {name: metadata["tokenizer.ggml.tokens"][id] for name, id in ids.items() if id is not None}
    return named | {"chat_template": metadata.get("tokenizer.chat_template")}


def _stop_ids(metadata: Mapping[str, Any]) -> list[int]:
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return [id for id in ids if id is not None]

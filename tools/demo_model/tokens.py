"""The tokenizer of the demo model, and the streams of token ids that it is trained on. Knows documents as plain strings only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB = 8192
END_OF_DOCUMENT = "<|endoftext|>"
CHAT_TOKENS = (END_OF_DOCUMENT, "<|im_start|>", "<|im_end|>")
TEXT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ADDED_TOKENS = CHAT_TOKENS + TEXT_TOKENS
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BATCH_DOCUMENTS = 512


def train_tokenizer(base: Sequence[str], chat: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of VOCAB tokens, trained on a sample of the documents; added tokens have the last ids."""
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(ADDED_TOKENS), min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_sample(base, chat), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CHAT_TOKENS])
    # These must survive decoding: a client reads them.
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in TEXT_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCAB}: it is too small")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(tokenizer), indent=1))


def pack(tokenizer: Tokenizer, documents: list[str]) -> npt.NDArray[np.uint16]:
    """One stream of the documents in a shuffled order, END_OF_DOCUMENT after each. The list is shuffled in place."""
    Random(3).shuffle(documents)
    return np.concatenate(list(_encoded(tokenizer, documents)))


def _encoded(tokenizer: Tokenizer, documents: list[str]) -> Iterator[npt.NDArray[np.uint16]]:
    end = tokenizer.token_to_id(END_OF_DOCUMENT)
    for start in range(0, len(documents), BATCH_DOCUMENTS):
        for encoded in tokenizer.encode_batch_fast(documents[start : start + BATCH_DOCUMENTS]):
            yield np.array([*encoded.ids, end], dtype=np.uint16)


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sample(base: Sequence[str], chat: Sequence[str]) -> list[str]:
    """Beginnings of documents, without the added tokens."""
    rng = Random(1)
    sample = rng.sample(base, min(len(base), 3500)) + rng.sample(chat, min(len(chat), 6000))
    added_tokens = re.compile("|".join(map(re.escape, ADDED_TOKENS)))
    return [part for document in sample for part in added_tokens.split(document[:60_000]) if part]


def _settings(tokenizer: Tokenizer) -> dict[str, object]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {str(tokenizer.token_to_id(token)): {"content": token, **plain, "special": token in CHAT_TOKENS} for token in ADDED_TOKENS}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "eos_token": "<|im_end|>",
        "pad_token": END_OF_DOCUMENT,
        "unk_token": None,
        "errors": "replace",
        "model_max_length": 32768,
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }

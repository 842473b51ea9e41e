"""A checkpoint's tokenizer: text to token ids and back, with a cache of text that was encoded before.

Text is cut at special tokens; each stretch between two (a fragment) is encoded on its own, so that a long conversation costs only its new
fragments. Sampled ids are cached too (text/sampled_texts.py): an answer that the client sends back gets exactly the ids that were sampled
after the same prefix, although the library might split its text otherwise and the chat template might render it a little differently than
the model wrote it. Every cache is per tenant. In an escaped text no token reaches across the escape character (text/control_tokens.py).
Knows nothing of chat templates, messages or MLX.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import tokenizers

from forerun.errors import BadRequestError, ModelError, UnsupportedError
from forerun.text.files import read_text
from forerun.text.lru import LruCache, Owner, num_tokens
from forerun.text.partial_match import num_common
from forerun.text.pieces import MOST_PIECE_CHARS, SAMPLES, batches, halves, no_token_spans_a_cut
from forerun.text.sampled_texts import LIMIT_TOKENS, PrefixDigest, SampledText, SampledTexts
from forerun.text.stop_tokens import stop_ids

FRAGMENTS_LIMIT_TOKENS = 2 << 20


class EscapedText(NamedTuple):
    """A text in which no token may reach across an `escape_char` ("": there are none), and the length of a prefix of it, escape characters
    included. The prefix does not end within a special token.
    """

    text: str
    prefix_chars: int
    escape_char: str


class EncodedText(NamedTuple):
    """The ids of an escaped text; how many of them, from the first on, are also those of its prefix; and the offsets of its fragments:
    (characters without escapes, tokens) before each, the totals last.
    """

    ids: array[int]
    prefix_tokens: int
    fragment_offsets: list[tuple[int, int]]


class Tokenizer:
    """A byte-level tokenizer. digest: hex over its definition. stop_ids: tokens that end an answer. size: the largest id + 1.

    control_tokens: the texts of its special tokens, which no message may produce.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, digest: str, stop_ids: frozenset[int]) -> None:
        self._library = library
        self.digest = digest
        self.stop_ids = stop_ids
        self.size = 1 + max(library.get_vocab(with_added_tokens=True).values())
        self.control_tokens = frozenset(token.content for token in library.get_added_tokens_decoder().values() if token.special)
        self._boundaries = _boundaries(library)
        self._boundary_ids = frozenset(self._boundaries.values())
        self._boundary = _any_of(self._boundaries)
        self._fragments: LruCache[tuple[str, str, str], array[int]] = LruCache(FRAGMENTS_LIMIT_TOKENS, num_tokens)
        self._sampled = SampledTexts()
        self._unfinished: LruCache[str, array[int]] = LruCache(LIMIT_TOKENS, num_tokens)
        self._bytes: dict[int, bytes] = {}
        vocabulary = [self.token_bytes(id) for id in library.get_vocab(with_added_tokens=True).values()]
        self._max_token_bytes = max(map(len, vocabulary))
        self._can_cut = no_token_spans_a_cut(vocabulary) and all(_is_cut(library, *halves(sample)) for sample in SAMPLES)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder. Raises ModelError, UnsupportedError (not byte-level)."""
        definition = read_text(folder / "tokenizer.json")
        try:
            library = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises nothing narrower
            raise ModelError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from error
        library.no_truncation()
        library.no_padding()
        _check_byte_level(library, folder)
        return cls(library, digest=sha256(definition.encode()).hexdigest(), stop_ids=stop_ids(library, folder))

    def encode(self, text: str, *, tenant: str) -> list[int]:
        """Token ids of the text, which must be valid Unicode. Special tokens in it are recognised, none are added."""
        return list(self.encode_escaped(EscapedText(text, len(text), escape_char=""), tenant=tenant).ids)

    def encode_escaped(self, escaped: EscapedText, *, tenant: str) -> EncodedText:
        """The text without its escape characters, encoded."""
        text, prefix_chars, escape_char = escaped
        ids, offsets = array("I"), [(0, 0)]
        prefix, start, prefix_tokens = PrefixDigest(tenant), 0, 0
        while start < len(text):
            fragment = self._next_fragment(prefix, text, start)
            new = self._encode_fragment(prefix, fragment, escape_char, tenant)
            if prefix_chars >= start + len(fragment):
                prefix_tokens += len(new)
            elif prefix_chars > start:
                prefix_tokens += num_common(new, self._encode_fragment(prefix, fragment[: prefix_chars - start], escape_char, tenant))
            start += len(fragment)
            prefix.extend(new)
            ids.extend(new)
            offsets.append((offsets[-1][0] + len(fragment) - (fragment.count(escape_char) if escape_char else 0), len(ids)))
        return EncodedText(ids, prefix_tokens, offsets)

    @property
    def definition(self) -> str:
        """The tokenizer as a tokenizer.json, as the library reads it."""
        return self._library.to_str()

    def encode_alone(self, text: str) -> list[int]:
        """Token ids of a short text by itself, whatever was sampled or cached. Special tokens in it are recognised, none are added."""
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def min_tokens(self, text: str) -> int:
        """A lower bound on the number of the text's tokens, from its bytes: what cannot fit need not be encoded."""
        return -(-len(text.encode()) // self._max_token_bytes)

    def cache_sampled(self, prompt: Sequence[int], sampled: Sequence[int], *, tenant: str, session: str = "") -> None:
        """Cache the ids of an answer: `encode` of a text that continues `prompt` with the same words gives the same ids; also if more than
        `sampled` follows, which may have been cut off. session: see `Owner`.
        """
        owner = Owner(tenant, session)
        start, prefix = self._last_boundary(prompt, tenant)
        before, last = prefix.hexdigest(), array("I")
        for is_boundary, run in groupby((*prompt[start:], *sampled), key=self._boundary_ids.__contains__):
            ids = array("I", run)
            fragment = self.decode(ids)
            if not is_boundary and self._cached_or_encoded(prefix, fragment, "", tenant) != ids:
                self._sampled.put(SampledText(prefix.hexdigest(), fragment, tuple(ids)), owner)
            before, last = prefix.hexdigest(), array("I") if is_boundary else ids
            prefix.extend(ids)
        if last:
            self._unfinished.put(before, last, owner)

    def sampled_text(self, prompt: Sequence[int], sampled: Sequence[int], rendered: str, *, tenant: str) -> SampledText:
        """The answer under the text that the template renders it as: `rendered` after `prompt` stands for the sampled ids."""
        start, prefix = self._last_boundary(prompt, tenant)
        return SampledText(prefix.hexdigest(), self.decode(prompt[start:]) + rendered, (*prompt[start:], *sampled))

    def cache_sampled_text(self, sampled_text: SampledText, owner: Owner) -> None:
        """Cache it: `encode` of a text that has this text after its prefix gives these ids, if a special token or nothing follows."""
        self._sampled.put(sampled_text, owner)

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the encoded texts and sampled answers of these owners."""
        for cache in (self._fragments, self._sampled, self._unfinished):
            cache.forget(is_gone)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def num_within(self, ids: Sequence[int], num_chars: int) -> int:
        """How many of the ids cover the first `num_chars` characters of their text."""
        decoder, decoded = codecs.getincrementaldecoder("utf-8")("replace"), 0
        for num, token in enumerate(ids):
            if decoded >= num_chars:
                return num
            decoded += len(decoder.decode(self.token_bytes(token)))
        return len(ids)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; none for an id that the tokenizer does not have."""
        cached = self._bytes.get(token)
        if cached is None:
            cached = self._bytes[token] = _unmap(self._library.id_to_token(token) or "")
        return cached

    def _last_boundary(self, prompt: Sequence[int], tenant: str) -> tuple[int, PrefixDigest]:
        """The number of tokens up to and including the prompt's last special token, and their digest."""
        start = next((i + 1 for i in reversed(range(len(prompt))) if prompt[i] in self._boundary_ids), 0)
        prefix = PrefixDigest(tenant)
        prefix.extend(prompt[:start])
        return start, prefix

    def _next_fragment(self, prefix: PrefixDigest, text: str, start: int) -> str:
        """What is encoded next: a special token, a whole answer that is cached after this prefix, else all up to the next special token."""
        for fragment in self._sampled.matches(prefix, text, start):
            if start + len(fragment) == len(text) or self._boundary.match(text, start + len(fragment)):
                return fragment
        boundary = self._boundary.search(text, start)
        if boundary is None:
            return text[start:]
        return boundary.group() if boundary.start() == start else text[start : boundary.start()]

    def _encode_fragment(self, prefix: PrefixDigest, fragment: str, escape_char: str, tenant: str) -> array[int]:
        boundary = self._boundaries.get(fragment)
        return self._cached_or_encoded(prefix, fragment, escape_char, tenant) if boundary is None else array("I", [boundary])

    def _cached_or_encoded(self, prefix: PrefixDigest, fragment: str, escape_char: str, tenant: str) -> array[int]:
        plain = fragment.replace(escape_char, "") if escape_char else fragment
        sampled = self._sampled.get(prefix, fragment) or self._sampled.get(prefix, plain)
        return sampled or self._resume_unfinished(prefix, plain, tenant) or self._encode_plain(fragment, escape_char, tenant)

    def _resume_unfinished(self, prefix: PrefixDigest, plain: str, tenant: str) -> array[int]:
        """The ids of an unfinished answer cached after this prefix, then those of the text after it; none if the fragment differs."""
        ids = self._unfinished.get(prefix.hexdigest()) or array("I")
        text = self.decode(ids)
        rest = plain[len(text) :]
        if not ids or not rest or not plain.startswith(text):
            return array("I")
        return ids + self._encode_plain(rest, "", tenant)

    def _encode_plain(self, fragment: str, escape_char: str, tenant: str) -> array[int]:
        key = (tenant, fragment, escape_char if escape_char in fragment else "")
        ids = self._fragments.get(key)
        if ids is None:
            parts = fragment.split(escape_char) if escape_char else [fragment]
            ids = array("I")
            for batch in batches(parts) if self._can_cut else [parts]:
                _check_pieces(batch)
                # Of the library's calls only those for batches let other threads run meanwhile; this one does not compute offsets.
                for encoding in self._library.encode_batch_fast(batch, add_special_tokens=False):
                    ids.extend(encoding.ids)
            self._fragments.put(key, ids, Owner(tenant, ""))
        return ids


def _check_pieces(batch: Sequence[str]) -> None:
    """Raises BadRequestError for a piece that would stop all threads too long. The library's regular expressions give up on larger ones."""
    longest = max(map(len, batch), default=0)
    if longest > MOST_PIECE_CHARS:
        message = f"{longest:,} characters without a space between words or a line break cannot be encoded: at most {MOST_PIECE_CHARS:,}"
        raise BadRequestError(message, hint="leave that part out, or break it into lines", param="messages")


def _boundaries(library: tokenizers.Tokenizer) -> dict[str, int]:
    """The special tokens at which text may be cut without changing how it is encoded, by their text; none if a token depends on the text
    around it.
    """
    added = {token.content: (id, token) for id, token in library.get_added_tokens_decoder().items() if not token.normalized}
    if any(token.lstrip or token.rstrip or token.single_word for _, token in added.values()):
        return {}
    boundaries = {content: id for content, (id, _) in added.items()}
    return boundaries if all(_stands_alone(library, boundary, id) for boundary, id in boundaries.items()) else {}


def _any_of(boundaries: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(boundaries, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _stands_alone(library: tokenizers.Tokenizer, boundary: str, id: int) -> bool:
    """False where the library encodes the first word of every text in a way of its own."""
    word = library.encode("word", add_special_tokens=False).ids
    return bool(library.encode(f"word{boundary}word", add_special_tokens=False).ids == [*word, id, *word])


def _is_cut(library: tokenizers.Tokenizer, left: str, right: str) -> bool:
    """Whether the two texts are encoded the same one after the other as together."""
    whole, *sides = (library.encode(text, add_special_tokens=False).ids for text in (left + right, left, right))
    return bool(whole == sides[0] + sides[1])


def _check_byte_level(library: tokenizers.Tokenizer, folder: Path) -> None:
    if not isinstance(library.decoder, tokenizers.decoders.ByteLevel):
        decoder = type(library.decoder).__name__
        raise UnsupportedError(f"the tokenizer of {folder} decodes by {decoder}", hint="byte-level tokenizers (ByteLevel) are supported")


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _unmap(token: str) -> bytes:
    """The bytes of a token as the vocabulary writes it; one with any character outside the alphabet (a special token) stands for itself."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()

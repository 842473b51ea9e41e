"""A checkpoint's tokenizer: text to token ids and back, with a memory of pieces that were encoded before.

Special tokens are hard borders: the text between two of them (a piece) is encoded on its own, so that a long conversation costs only its
new pieces. What the model sampled is remembered too (text/sampled_texts.py): an answer that the client sends back gets the very ids that were
sampled, at the same place of the same conversation, though the library would have split its text differently, or though the chat template
writes it a little differently than the model did. Everything remembered belongs to a tenant.
Where a marked text has its mark, nothing is recognised across it (see text/control_tokens.py).
Knows nothing of chat templates, messages or MLX.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

import tokenizers

from forerun.errors import ModelError, UnsupportedError
from forerun.text.files import read_text
from forerun.text.lru import LruCache
from forerun.text.sampled_texts import LIMIT_TOKENS, PrefixDigest, SampledText, SampledTexts
from forerun.text.stop_tokens import stop_ids

PIECES_LIMIT_TOKENS = 2 << 20


class EscapedText(NamedTuple):
    """A text in which `mark` stands where no token may reach across, and a place in it: its first `end` characters.

    mark "": there are no marks. The place does not lie within a special token.
    """

    text: str
    end: int
    escape: str


class EncodedText(NamedTuple):
    """A marked text's ids; how many of them, from the first on, are also those of the text up to its `end`; and where in the text without
    marks, and among the ids, its pieces begin: (characters, ids) before each, the ends of all last.
    """

    ids: list[int]
    num_common: int
    pieces: list[tuple[int, int]]


class Tokenizer:
    """A byte-level tokenizer. digest: hex over its definition. stop_ids: tokens that end an answer. size: one more than the largest id.

    control_tokens: the texts of its special tokens, those that are no part of what is said.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, digest: str, stop_ids: frozenset[int]) -> None:
        self._library = library
        self.digest = digest
        self.stop_ids = stop_ids
        self.size = 1 + max(library.get_vocab(with_added_tokens=True).values())
        self.control_tokens = frozenset(token.content for token in library.get_added_tokens_decoder().values() if token.special)
        self._borders = _borders(library)
        self._border_ids = frozenset(self._borders.values())
        self._border = _any_of(self._borders)
        self._pieces: LruCache[tuple[str, str, str]] = LruCache(PIECES_LIMIT_TOKENS)
        self._sampled = SampledTexts()
        self._begun: LruCache[str] = LruCache(LIMIT_TOKENS)
        self._bytes: dict[int, bytes] = {}

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
        return self.encode_escaped(EscapedText(text, len(text), escape=""), tenant=tenant).ids

    def encode_escaped(self, marked: EscapedText, *, tenant: str) -> EncodedText:
        """The text without its marks, encoded."""
        ids, pieces = list[int](), [(0, 0)]
        place, start, num_common = PrefixDigest(tenant), 0, 0
        while start < len(marked.text):
            piece = self._piece_at(place, marked.text, start)
            new = self._ids_of(place, piece, marked.escape, tenant)
            if marked.end >= start + len(piece):
                num_common += len(new)
            elif marked.end > start:
                num_common += _num_common(new, self._ids_of(place, piece[: marked.end - start], marked.escape, tenant))
            start += len(piece)
            place.extend(new)
            ids.extend(new)
            pieces.append((pieces[-1][0] + len(piece) - (piece.count(marked.escape) if marked.escape else 0), len(ids)))
        return EncodedText(ids, num_common, pieces)

    def learn(self, prompt: Sequence[int], sampled: Sequence[int], *, tenant: str) -> None:
        """Remember how the model wrote its answer: `encode` of a text that continues `prompt` with the same words gives the same ids; also
        if it says more than `sampled`, which may have been cut off.
        """
        start, place = self._last_border(prompt, tenant)
        before, last = place.name, array("I")
        for is_border, run in groupby((*prompt[start:], *sampled), key=self._border_ids.__contains__):
            ids = array("I", run)
            piece = self.decode(ids)
            if not is_border and self._ids_at(place, piece, "", tenant) != ids:
                self._sampled.put(SampledText(place.name, piece, tuple(ids)))
            before, last = place.name, array("I") if is_border else ids
            place.extend(ids)
        if last:
            self._begun.put(before, last)

    def sampled_text(self, prompt: Sequence[int], sampled: Sequence[int], echo: str, *, tenant: str) -> SampledText:
        """An answer's other wording: what continues `prompt` with `echo` was sampled so."""
        start, place = self._last_border(prompt, tenant)
        return SampledText(place.name, self.decode(prompt[start:]) + echo, (*prompt[start:], *sampled))

    def learn_sampled(self, sampled_text: SampledText) -> None:
        """Remember it: `encode` of a text that has this text at this place gives these ids, if a special token or nothing follows."""
        self._sampled.put(sampled_text)

    def forget(self) -> None:
        """Forget every text that was encoded, and how answers were written."""
        for memory in (self._pieces, self._sampled, self._begun):
            memory.clear()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens kept; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def num_within(self, ids: Sequence[int], num_chars: int) -> int:
        """How many of the ids it takes to write the first `num_chars` characters of their text."""
        decoder, written = codecs.getincrementaldecoder("utf-8")("replace"), 0
        for num, token in enumerate(ids):
            if written >= num_chars:
                return num
            written += len(decoder.decode(self.token_bytes(token)))
        return len(ids)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; none for an id that the tokenizer does not have."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = _unmap(self._library.id_to_token(token) or "")
        return known

    def _last_border(self, prompt: Sequence[int], tenant: str) -> tuple[int, PrefixDigest]:
        """The place behind the prompt's last special token."""
        start = next((i + 1 for i in reversed(range(len(prompt))) if prompt[i] in self._border_ids), 0)
        place = PrefixDigest(tenant)
        place.extend(prompt[:start])
        return start, place

    def _piece_at(self, place: PrefixDigest, text: str, start: int) -> str:
        """What is encoded next: a special token, a whole answer that is remembered here, else all up to the next special token."""
        for piece in self._sampled.beginnings(place, text, start):
            if start + len(piece) == len(text) or self._border.match(text, start + len(piece)):
                return piece
        border = self._border.search(text, start)
        return text[start:] if border is None else border.group() if border.start() == start else text[start : border.start()]

    def _ids_of(self, place: PrefixDigest, piece: str, escape: str, tenant: str) -> list[int]:
        border = self._borders.get(piece)
        return list(self._ids_at(place, piece, escape, tenant)) if border is None else [border]

    def _ids_at(self, place: PrefixDigest, piece: str, escape: str, tenant: str) -> array[int]:
        said = piece.replace(escape, "") if escape else piece
        known = self._sampled.get(place, piece) or self._sampled.get(place, said)
        return known or self._continued(place, said, tenant) or self._encode_piece(piece, escape, tenant)

    def _continued(self, place: PrefixDigest, said: str, tenant: str) -> array[int]:
        """The ids with which an answer was begun here and those of what the piece says after it; none if it does not begin like that."""
        begun = self._begun.get(place.name) or array("I")
        text = self.decode(begun)
        rest = said[len(text) :]
        if not begun or not rest or not said.startswith(text):
            return array("I")
        return begun + self._encode_piece(rest, "", tenant)

    def _encode_piece(self, piece: str, escape: str, tenant: str) -> array[int]:
        key = (tenant, piece, escape if escape in piece else "")
        ids = self._pieces.get(key)
        if ids is None:
            parts = piece.split(escape) if escape else [piece]
            ids = array("I", (id for part in parts for id in self._library.encode(part, add_special_tokens=False).ids))
            self._pieces.put(key, ids)
        return ids


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _borders(library: tokenizers.Tokenizer) -> dict[str, int]:
    """Tokens at which text may be cut without changing how it is encoded, by their text; none if this tokenizer has no such places."""
    added = {token.content: (id, token) for id, token in library.get_added_tokens_decoder().items() if not token.normalized}
    if any(token.lstrip or token.rstrip or token.single_word for _, token in added.values()):
        return {}  # these depend on their neighbours
    borders = {content: id for content, (id, _) in added.items()}
    return borders if all(_stands_alone(library, border, id) for border, id in borders.items()) else {}


def _any_of(borders: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(borders, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _stands_alone(library: tokenizers.Tokenizer, border: str, id: int) -> bool:
    """False where the first word of a text is encoded in its own way, wherever the text was cut."""
    word = library.encode("word", add_special_tokens=False).ids
    return bool(library.encode(f"word{border}word", add_special_tokens=False).ids == [*word, id, *word])


def _check_byte_level(library: tokenizers.Tokenizer, folder: Path) -> None:
    if not isinstance(library.decoder, tokenizers.decoders.ByteLevel):
        found = type(library.decoder).__name__
        raise UnsupportedError(f"the tokenizer of {folder} decodes by {found}", hint="byte-level tokenizers (ByteLevel) are supported")


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _unmap(token: str) -> bytes:
    """Bytes of a token's written form; a form with any character outside the alphabet (of a special token) stands for itself."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()

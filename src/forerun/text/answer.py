"""The answer's way from tokens to text that a client may see: whole characters only, and nothing from a stop string on.

Costs O(1) amortised a token. Knows nothing of reasoning, tool calls or frames.
"""

from __future__ import annotations

import codecs

from forerun.text.partial_match import first_match, partial_overlap
from forerun.text.tokenizer import Tokenizer


class Answer:
    """One answer being written. stop: non-empty strings; the one that is complete first ends the answer (of several the longest).
    reasoning_end: the tag that ends the reasoning with which the answer begins, "" if it begins with none. Stop strings are looked for
    behind it and the line breaks that follow it.

    stop_string: the stop string that is complete, "" while there is none; nothing of it or after it is ever given out.
    ends: for each pushed token, characters of the answer up to its last one.
    emitted_tokens: number of pushed tokens whose text lies wholly within the text given out so far.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], reasoning_end: str) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._reasoning_end, self._reasoned = reasoning_end, ""
        self._held = ""
        self._num_decoded = 0
        self._num_given = 0
        self.ends: list[int] = []
        self.stop_string = ""
        self.emitted_tokens = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return bool(self.stop_string)

    def push(self, token: int) -> str:
        """The new text that is certain after one more token."""
        new = self._decoder.decode(self._tokenizer.token_bytes(token))
        self._num_decoded += len(new)
        is_inside_char = bool(self._decoder.getstate()[0])
        self.ends.append(self._num_decoded + is_inside_char)
        return self._give(self._read(new))

    def flush(self) -> str:
        """The rest of an answer that no stop string has ended. Nothing may be pushed afterwards."""
        rest = self._read(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return self._give(rest)

    def _read(self, new: str) -> str:
        """Take in decoded text; returns what no longer can belong to a stop string."""
        if self.is_stopped:
            return ""
        quiet = self._num_of_reasoning(new)  # nothing is held while this is not 0
        reasoning, text = new[:quiet], self._held + new[quiet:]
        self.stop_string = first_match(text, self._stop, len(self._held))
        certain = text.index(self.stop_string) if self.is_stopped else len(text) - partial_overlap(text, self._stop)
        self._held = "" if self.is_stopped else text[certain:]
        return reasoning + text[:certain]

    def _num_of_reasoning(self, new: str) -> int:
        """How many of the new characters belong to the reasoning, its tag, or the line breaks behind."""
        if not self._reasoning_end:
            return 0
        self._reasoned += new
        _, tag, rest = self._reasoned.partition(self._reasoning_end)
        if rest := rest.lstrip("\n"):
            self._reasoning_end = ""
        else:
            self._reasoned = tag or self._reasoned[-len(self._reasoning_end) :]
        return len(new) - len(rest)

    def _give(self, text: str) -> str:
        """Count the tokens that are out with this text."""
        self._num_given += len(text)
        while self.emitted_tokens < len(self.ends) and self.ends[self.emitted_tokens] <= self._num_given:
            self.emitted_tokens += 1
        return text

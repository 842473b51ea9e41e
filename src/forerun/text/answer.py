"""Tokens of an answer to the text that a client may see: whole characters only, and nothing of a stop string or after it.

O(1) amortised per token. Knows nothing of reasoning parsers, tool calls or frames.
"""

from __future__ import annotations

import codecs

from forerun.text.partial_match import first_match, partial_overlap
from forerun.text.tokenizer import Tokenizer


class Answer:
    """Incremental detokenizer of one answer. stop: non-empty strings; the one that completes first ends the answer (the longest, if several
    do). reasoning_end: the tag that ends the reasoning at the start of the answer, "" if there is none. The search for stop strings starts
    after it and the line breaks that follow.

    stop_string: the stop string that completed, "" if none has.
    ends: for each pushed token, the number of characters of the answer up to its end.
    emitted_tokens: number of pushed tokens whose text lies wholly within the emitted text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], reasoning_end: str) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._reasoning_end, self._reasoning_tail = reasoning_end, ""
        self._held = ""
        self._num_decoded = 0
        self._num_emitted = 0
        self.ends: list[int] = []
        self.stop_string = ""
        self.emitted_tokens = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return bool(self.stop_string)

    @property
    def may_be_cut(self) -> bool:
        """Whether a stop string may end it."""
        return bool(self._stop)

    def push(self, token: int) -> str:
        """The text that one more token makes certain."""
        new = self._decoder.decode(self._tokenizer.token_bytes(token))
        self._num_decoded += len(new)
        is_inside_char = bool(self._decoder.getstate()[0])
        self.ends.append(self._num_decoded + is_inside_char)
        return self._emit(self._release(new))

    def flush(self) -> str:
        """The rest of an answer that no stop string has ended. Nothing may be pushed afterwards."""
        rest = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return self._emit(rest)

    def _release(self, new: str) -> str:
        """Adds decoded text. Returns what can no longer belong to a stop string."""
        if self.is_stopped:
            return ""
        quiet = self._num_reasoning_chars(new)  # nothing is held while this is not 0
        reasoning, text = new[:quiet], self._held + new[quiet:]
        self.stop_string = first_match(text, self._stop, len(self._held))
        certain = text.index(self.stop_string) if self.is_stopped else len(text) - partial_overlap(text, self._stop)
        self._held = "" if self.is_stopped else text[certain:]
        return reasoning + text[:certain]

    def _num_reasoning_chars(self, new: str) -> int:
        """How many of the new characters belong to the reasoning, its tag, or the line breaks after it."""
        if not self._reasoning_end:
            return 0
        self._reasoning_tail += new
        _, tag, rest = self._reasoning_tail.partition(self._reasoning_end)
        if rest := rest.lstrip("\n"):
            self._reasoning_end = ""
        else:
            self._reasoning_tail = tag or self._reasoning_tail[-len(self._reasoning_end) :]
        return len(new) - len(rest)

    def _emit(self, text: str) -> str:
        """Counts the tokens that are emitted with this text."""
        self._num_emitted += len(text)
        while self.emitted_tokens < len(self.ends) and self.ends[self.emitted_tokens] <= self._num_emitted:
            self.emitted_tokens += 1
        return text

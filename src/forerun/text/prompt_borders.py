"""Where the parts of a prompt's first message end: the system text, the tools, each tool. Agents send one part again with others changed or
left out, so these are places to resume from.

Found by rendering the first message again with parts changed, once for each first message of a tenant. Knows nothing of snapshots.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from forerun.text.lru import LruCache, Owner
from forerun.text.partial_match import num_common
from forerun.text.prompt_locations import PLACEHOLDER, QUESTION
from forerun.text.sampled_texts import PrefixDigest
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

LEAST_TOKENS = 1024  # of a first message: the parts of a shorter one are cheap to prefill
MOST_TOOLS = 16  # after which a border is looked for, evenly spread
WORD_TOKENS = 16  # before a border, among which the start of a word is looked for
LIMIT_ENTRIES = 64


class PromptBorders:
    """Borders within first messages, by a digest of their tokens: no text is stored. Shared by threads."""

    def __init__(self, template: Template, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        self._found: LruCache[str, tuple[int, ...]] = LruCache(LIMIT_ENTRIES, lambda _: 1)

    def within_first_message(self, chat: Chat, text: str, escape_char: str, tokens: Sequence[int], *, tenant: str) -> tuple[int, ...]:
        """Numbers of tokens before the borders: first those after the system text and after the tools, whichever the template puts first,
        then those between tools. chat: as rendered to `text`, of which `tokens` are.
        """
        length = next((i + 1 for i, token in enumerate(tokens) if token in self._tokenizer.stop_ids), 0)
        if not chat.tools or length < LEAST_TOKENS:
            return ()
        digest = PrefixDigest(tenant)
        digest.extend(tokens[:length])
        key = digest.hexdigest()
        if (found := self._found.get(key)) is None:
            found = self._find(chat, text, escape_char, tokens[:length])
            self._found.put(key, found, Owner(tenant, ""))
        return found

    def _find(self, chat: Chat, text: str, escape_char: str, tokens: Sequence[int]) -> tuple[int, ...]:
        ends = list(accumulate(len(self._tokenizer.token_bytes(token)) for token in tokens))
        prefixes = (text[:char].replace(escape_char, "").encode() for char in self._chars(chat, text))
        positions = (self._before_word(tokens, bisect_right(ends, len(prefix))) for prefix in prefixes)
        return tuple(dict.fromkeys(position for position in positions if 0 < position < len(tokens)))

    def _before_word(self, tokens: Sequence[int], position: int) -> int:
        """The position before the last word up to here: what follows the border cannot change the tokens before that. The same position if
        there is no word nearby.
        """
        texts = [self._tokenizer.token_bytes(token) for token in tokens[max(0, position - WORD_TOKENS) : position]]
        words = (i for i in range(len(texts) - 1, 0, -1) if re.match(rb" \S", texts[i]) and not texts[i - 1][-1:].isspace())
        return position - len(texts) + next(words, len(texts))

    def _chars(self, chat: Chat, text: str) -> Iterator[int]:
        """Lengths of the text's prefixes before the borders."""
        system = (message for message in chat.messages[:1] if message["role"] in ("system", "developer"))
        first = replace(chat, messages=(*system, QUESTION))
        shared = num_common(self._render(first), text)
        for other in _variants(first):
            if rendered := self._render(other):
                yield min(shared, num_common(rendered, text))

    def _render(self, chat: Chat) -> str:
        return self._template.attempt(chat, add_generation_prompt=False)


def _variants(first: Chat) -> Iterator[Chat]:
    """The conversation with a part left out or changed."""
    *system, question = first.messages
    if system:
        yield replace(first, tools=())
        yield replace(first, messages=({**system[0], "content": PLACEHOLDER}, question))
    step = -(-len(first.tools) // MOST_TOOLS)
    for num in range(step, len(first.tools), step):
        yield replace(first, tools=first.tools[:num])

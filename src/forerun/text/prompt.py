"""From a conversation to prompt tokens, and the position where its messages end. Knows nothing of caches or MLX."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from forerun import values
from forerun.errors import BadRequestError, ContextLengthError
from forerun.text.answer_memory import AnswerMemory, RememberedAnswer
from forerun.text.answer_parser import PLAIN, AnswerFormat, AnswerParser, LogprobsOf
from forerun.text.calls.tools import Tools
from forerun.text.control_tokens import ControlTokenEscaper
from forerun.text.lru import Owner
from forerun.text.prompt_borders import PromptBorders
from forerun.text.prompt_locations import PromptLocator
from forerun.text.template import Template
from forerun.text.template_adapter import TemplateAdapter
from forerun.text.tokenizer import EscapedText, Tokenizer
from forerun.values import Chat, TextPrompt, TokenPrompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    message_end: number of tokens that the next turn of the same conversation starts with (all but the generation prompt).
    opens_reasoning: the prompt ends inside <think>, so the answer starts with reasoning. text: as rendered, with escape characters.
    answer_format, tools: for parsing the answer. notes: what the template could not express, for people. locator: finds the message of a
    character. fragment_offsets: see EncodedText; () for tokens without messages. borders: see PromptBorders.
    """

    tokens: tuple[int, ...]
    message_end: int
    opens_reasoning: bool
    text: str
    answer_format: AnswerFormat
    tools: Tools
    notes: tuple[str, ...]
    locator: PromptLocator
    fragment_offsets: Sequence[tuple[int, int]]
    borders: tuple[int, ...]

    def char_offset(self, token: int, tokenizer: Tokenizer) -> int:
        """Where the token at this index starts in the text without escapes. Counted within its fragment, since sampled tokens may differ
        in characters from what the template renders.
        """
        if not self.fragment_offsets:
            return 0
        index = bisect_right(self.fragment_offsets, token, key=lambda offsets: offsets[1]) - 1
        char, start = self.fragment_offsets[index]
        return min(char + len(tokenizer.decode(self.tokens[start:token])), *(c for c, _ in self.fragment_offsets[index + 1 : index + 2]))

    @property
    def reasoning_end(self) -> str:
        """The tag that ends the reasoning at the start of the answer, "" if there is none."""
        return self.answer_format.reasoning.close if self.opens_reasoning and self.answer_format.reasoning else ""

    def answer_parser(self, request_id: str, logprobs_of: LogprobsOf) -> AnswerParser:
        """A parser of the answer. The ids of its calls are derived from the request's id."""
        call_id_of, opens = partial(call_id, request_id), self.opens_reasoning
        return AnswerParser(self.answer_format, self.tools, call_id_of, opens_reasoning=opens, logprobs_of=logprobs_of)


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """A finished answer. sampled: its ids, without the stop token. text: all that the client received."""

    sampled: tuple[int, ...]
    text: str
    message: Mapping[str, Any]


class Prompter:
    """Renders and encodes prompts, and remembers answers."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._adapter = TemplateAdapter(template)
        self._answer_memory = AnswerMemory()
        self._escaper = ControlTokenEscaper(tokenizer.control_tokens, template.answer_format.reasoning or ())
        self._borders = PromptBorders(template, tokenizer)

    def encode(self, prompt: values.Prompt, *, tenant: str, context_tokens: int = sys.maxsize) -> Prompt:
        """The prompt's tokens. Raises BadRequestError (the template refuses, text that is not Unicode), and ContextLengthError before it
        encodes a text that has `context_tokens` or more, whatever its tokens are.
        """
        if not isinstance(prompt, Chat):
            if isinstance(prompt, TextPrompt):
                self._check_length(_unicode(prompt.text), context_tokens)
            ids = prompt.tokens if isinstance(prompt, TokenPrompt) else tuple(self.tokenizer.encode(prompt.text, tenant=tenant))
            return Prompt(
                ids,
                len(ids),
                opens_reasoning=False,
                text="",
                answer_format=PLAIN,
                tools=Tools(()),
                notes=(),
                locator=PromptLocator(self.template, None),
                fragment_offsets=(),
                borders=(),
            )
        chat, escape_char, text, notes = self._render(prompt, tenant)
        self._check_length(text.replace(escape_char, ""), context_tokens)
        messages = self.template.render(chat, add_generation_prompt=False)
        end = len(messages) if text.startswith(messages) else len(text)
        tokens, message_end, offsets = self.tokenizer.encode_escaped(EscapedText(text, end, escape_char), tenant=tenant)
        opens, tools = text.rstrip().endswith("<think>"), Tools((*prompt.tools, *prompt.held_back))
        locator = PromptLocator(self.template, chat, escape_char)
        borders = self._borders.within_first_message(chat, text, escape_char, tokens, tenant=tenant)
        return Prompt(tuple(tokens), message_end, opens, text, self.template.answer_format, tools, notes, locator, offsets, borders)

    def count(self, prompt: values.Prompt, *, tenant: str) -> int:
        """The number of the prompt's tokens, which may be far more than any context. Raises BadRequestError."""
        if not isinstance(prompt, Chat):
            return len(self.encode(prompt, tenant=tenant).tokens)
        _, escape_char, text, _ = self._render(prompt, tenant)
        return len(self.tokenizer.encode_escaped(EscapedText(text, 0, escape_char), tenant=tenant).ids)

    def remember_answer(
        self, chat: values.Prompt, prompt: Prompt, answer: SampledAnswer, *, tenant: str, session: str = ""
    ) -> RememberedAnswer | None:
        """Remember the answer, so that a later prompt that repeats it gets the sampled ids, however the client writes it. Returns what
        another process needs for that, None if that is impossible. session: the conversation's id, for `forget`.
        """
        self.tokenizer.cache_sampled(prompt.tokens, answer.sampled, tenant=tenant, session=session)
        if not isinstance(chat, Chat) or self.tokenizer.decode(answer.sampled) != answer.text:
            return None  # a stop string cut through a token: the ids hold more text than the client received
        message = {**answer.message, "content": answer.message["content"] or ""}
        self._answer_memory.add(message, tenant=tenant, session=session)
        rendered = self._continuation(replace(chat, messages=(*chat.messages, message)), prompt, tenant)
        sampled_text = self.tokenizer.sampled_text(prompt.tokens, answer.sampled, rendered, tenant=tenant) if rendered else None
        if sampled_text:
            self.tokenizer.cache_sampled_text(sampled_text, Owner(tenant, session))
        return RememberedAnswer(message, sampled_text)

    def load_answer(self, answer: RememberedAnswer, *, tenant: str) -> None:
        """Remember an answer of this process or another."""
        self._answer_memory.add(answer.message, tenant=tenant)
        if answer.sampled_text:
            self.tokenizer.cache_sampled_text(answer.sampled_text, Owner(tenant, ""))

    def missing_answers(self, chat: Chat, *, tenant: str) -> list[str]:
        """Keys of the conversation's assistant messages that are not remembered."""
        return self._answer_memory.missing_keys(chat.messages, tenant=tenant)

    def _check_length(self, text: str, context_tokens: int) -> None:
        if (at_least := self.tokenizer.min_tokens(text)) >= context_tokens:
            raise ContextLengthError(f"at least {at_least}", context_tokens)

    def _render(self, chat: Chat, tenant: str) -> tuple[Chat, str, str, tuple[str, ...]]:
        """The conversation as the template takes it, the escape character in it, its prompt's text, and notes."""
        adapted, notes = self._adapt(chat, tenant)
        escaped, escape_char = self._escaper.escape(adapted)
        return escaped, escape_char, _unicode(self.template.render(escaped, add_generation_prompt=True)), notes

    def _adapt(self, chat: Chat, tenant: str) -> tuple[Chat, tuple[str, ...]]:
        """The conversation with answers restored, as the template supports it, and notes."""
        return self._adapter.adapt(replace(chat, messages=self._answer_memory.restore(chat.messages, tenant=tenant)))

    def _continuation(self, chat: Chat, prompt: Prompt, tenant: str) -> str:
        """What the template renders after the prompt for its answer, up to the stop token; "" if the text diverges from the prompt's."""
        escaped, _ = self._escaper.escape(self._adapt(chat, tenant)[0])
        text = self.template.attempt(escaped, add_generation_prompt=False)
        end = max(text.rfind(self.tokenizer.decode([stop])) for stop in self.tokenizer.stop_ids)
        return text[len(prompt.text) : end] if text.startswith(prompt.text) else ""

    def remember_stored(self, before: Sequence[int], stored: Sequence[int], *, tenant: str) -> None:
        """Remember how a stored conversation continues after these tokens: `encode` gives the same ids for the same text there."""
        self.tokenizer.cache_sampled(before, stored, tenant=tenant)

    def forget(self, tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Remove the answers of the tenant's conversations that are gone, by their ids; and what it encoded or loaded from disk, of which
        the conversation is unknown: it is encoded or loaded again. Other conversations keep their sampled ids.
        """

        def is_owner_gone(owner: Owner) -> bool:
            return owner.tenant == tenant and (not owner.session or is_gone(owner.session))

        self._answer_memory.forget(is_owner_gone)
        self.tokenizer.forget(is_owner_gone)


def call_id(request_id: str, index: int) -> str:
    """The id of the request's tool call with this index."""
    return f"call_{blake2b(f'{request_id}/{index}'.encode(), digest_size=12).hexdigest()}"


def _unicode(text: str) -> str:
    """The text. Raises BadRequestError: JSON can carry half of a surrogate pair, tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        char = f"{text[error.start]!r} at character {error.start} of the rendered prompt"
        raise BadRequestError(f"a message holds half of a surrogate pair: {char}", param="messages") from error
    return text

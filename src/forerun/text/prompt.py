"""From a conversation to the tokens that the model reads, and the place where its messages end. Knows nothing of caches or MLX."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from forerun import values
from forerun.errors import BadRequestError
from forerun.text.answer_memory import AnswerMemory, RememberedAnswer
from forerun.text.answer_parser import PLAIN, AnswerFormat, AnswerParser, Tell
from forerun.text.calls.tools import Tools
from forerun.text.control_tokens import ControlTokenEscaper
from forerun.text.prompt_locations import PromptLocator
from forerun.text.template import Template
from forerun.text.template_adapter import TemplateAdapter
from forerun.text.tokenizer import EscapedText, Tokenizer
from forerun.values import Chat, TokenPrompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    message_end: how many of them the next turn of the same conversation will begin with (all but the suffix that asks for an answer).
    opens_reasoning: the prompt ends inside <think>, so that the answer begins with reasoning.
    text: as it was rendered. form, tools: how the answer is written, and what it may call. notes: what the template could not take as it
    was sent, for people. locator: which message a place in the text belongs to. pieces: where in the text without marks, and among the
    tokens, its pieces begin and end.
    """

    tokens: tuple[int, ...]
    message_end: int
    opens_reasoning: bool
    text: str
    answer_format: AnswerFormat
    tools: Tools
    notes: tuple[str, ...]
    locator: PromptLocator
    pieces: Sequence[tuple[int, int]]

    def char_offset(self, token: int, tokenizer: Tokenizer) -> int:
        """Where in the text without marks the token with this number begins: counted within its piece, since what the model sampled may
        say the same in other characters than the template.
        """
        if not self.pieces:
            return 0
        at = bisect_right(self.pieces, token, key=lambda piece: piece[1]) - 1
        char, start = self.pieces[at]
        return min(char + len(tokenizer.decode(self.tokens[start:token])), *(c for c, _ in self.pieces[at + 1 : at + 2]))

    @property
    def reasoning_end(self) -> str:
        """The tag that ends the reasoning with which the answer begins, "" if it begins with none."""
        return self.answer_format.reasoning.close if self.opens_reasoning and self.answer_format.reasoning else ""

    def answer_parser(self, request_id: str, tell: Tell) -> AnswerParser:
        """What takes the answer apart. The ids of its calls follow from the request's id."""
        return AnswerParser(self.answer_format, self.tools, partial(call_id, request_id), opens_reasoning=self.opens_reasoning, tell=tell)


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """An answer that was given. sampled: its ids, without the one that ended it. text: as the client was shown it, in one."""

    sampled: tuple[int, ...]
    text: str
    message: Mapping[str, Any]


class Prompter:
    """Renders and encodes prompts, and remembers what was answered."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._dialogue = TemplateAdapter(template)
        self._answer_memory = AnswerMemory()
        self._escaper = ControlTokenEscaper(tokenizer.control_tokens)

    def encode(self, prompt: values.Prompt, *, tenant: str) -> Prompt:
        """The prompt's tokens. Raises BadRequestError (the template refuses, text that is not Unicode)."""
        if not isinstance(prompt, Chat):
            ids = prompt.tokens if isinstance(prompt, TokenPrompt) else tuple(self.tokenizer.encode(_unicode(prompt.text), tenant=tenant))
            return Prompt(
                ids,
                len(ids),
                opens_reasoning=False,
                text="",
                answer_format=PLAIN,
                tools=Tools(()),
                notes=(),
                locator=PromptLocator(self.template, None),
                pieces=(),
            )
        suited, notes = self._adapted(prompt, tenant)
        chat, escape = self._escaper.escape(suited)
        text = _unicode(self.template.render(chat, add_generation_prompt=True))
        messages = self.template.render(chat, add_generation_prompt=False)
        end = len(messages) if text.startswith(messages) else len(text)
        tokens, message_end, pieces = self.tokenizer.encode_escaped(EscapedText(text, end, escape), tenant=tenant)
        opens, answer_format, locator = text.rstrip().endswith("<think>"), self.template.answer_format, PromptLocator(self.template, suited)
        return Prompt(
            tuple(tokens), message_end, opens, text, answer_format, Tools((*prompt.tools, *prompt.held_back)), notes, locator, pieces
        )

    def remember_answer(self, chat: values.Prompt, prompt: Prompt, answer: SampledAnswer, *, tenant: str) -> RememberedAnswer | None:
        """Remember the answer, so that a later prompt that repeats it has the ids that were sampled, however the client writes it anew.
        Returns what another process has to know for that, None if nothing would do.
        """
        self.tokenizer.learn(prompt.tokens, answer.sampled, tenant=tenant)
        if not isinstance(chat, Chat) or self.tokenizer.decode(answer.sampled) != answer.text:
            return None  # a stop string cut through a token: its ids say more than the client saw
        message = {**answer.message, "content": answer.message["content"] or ""}
        self._answer_memory.learn(message, tenant=tenant)
        echo = self._continuation(replace(chat, messages=(*chat.messages, message)), prompt, tenant)
        sampled_text = self.tokenizer.sampled_text(prompt.tokens, answer.sampled, echo, tenant=tenant) if echo else None
        if sampled_text:
            self.tokenizer.learn_sampled(sampled_text)
        return RememberedAnswer(message, sampled_text)

    def load_answer(self, given: RememberedAnswer, *, tenant: str) -> None:
        """Remember an answer that was given by this process or another."""
        self._answer_memory.learn(given.message, tenant=tenant)
        if given.sampled_text:
            self.tokenizer.learn_sampled(given.sampled_text)

    def missing_answers(self, chat: Chat, *, tenant: str) -> list[str]:
        """Names of answers that the conversation may repeat and that are not remembered."""
        return self._answer_memory.unknown(chat.messages, tenant=tenant)

    def _adapted(self, chat: Chat, tenant: str) -> tuple[Chat, tuple[str, ...]]:
        """The conversation as the template takes it, and notes."""
        return self._dialogue.adapt(replace(chat, messages=self._answer_memory.restore(chat.messages, tenant=tenant)))

    def _continuation(self, chat: Chat, prompt: Prompt, tenant: str) -> str:
        """What the template writes behind the prompt for its answer, up to the token that ends it; "" if it does not go on so."""
        escaped, _ = self._escaper.escape(self._adapted(chat, tenant)[0])
        try:
            text = self.template.render(escaped, add_generation_prompt=False)
        except BadRequestError:
            return ""
        end = max(text.rfind(self.tokenizer.decode([stop])) for stop in self.tokenizer.stop_ids)
        return text[len(prompt.text) : end] if text.startswith(prompt.text) else ""

    def remember_stored(self, before: Sequence[int], stored: Sequence[int], *, tenant: str) -> None:
        """Remember how a stored conversation goes on after these tokens: `encode` gives the same ids for the same text there."""
        self.tokenizer.learn(before, stored, tenant=tenant)

    def clear(self) -> None:
        """Forget what was answered and encoded: it is worked out, or learnt from stored conversations, anew."""
        self._answer_memory.clear()
        self.tokenizer.forget()


def call_id(request_id: str, index: int) -> str:
    """The id of the request's call with this index."""
    return f"call_{blake2b(f'{request_id}/{index}'.encode(), digest_size=12).hexdigest()}"


def _unicode(text: str) -> str:
    """The text. Raises BadRequestError: JSON can carry half of a surrogate pair, tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!r} at character {error.start} of the rendered prompt"
        raise BadRequestError(f"a message holds half of a surrogate pair: {found}", param="messages") from error
    return text

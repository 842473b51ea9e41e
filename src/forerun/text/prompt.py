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
from forerun.text.calls.tools import Tools
from forerun.text.dialogue import Dialogue
from forerun.text.echo import Echoes, Given
from forerun.text.literal import Literals
from forerun.text.parts import PLAIN, AnswerParts, Form, Tell
from forerun.text.places import Places
from forerun.text.template import Template
from forerun.text.tokenizer import Marked, Tokenizer
from forerun.values import Chat, Raw


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    message_end: how many of them the next turn of the same conversation will begin with (all but the suffix that asks for an answer).
    opens_reasoning: the prompt ends inside <think>, so that the answer begins with reasoning.
    text: as it was rendered. form, tools: how the answer is written, and what it may call. notes: what the template could not take as it
    was sent, for people. places: which message a place in the text belongs to. pieces: where in the text without marks, and among the
    tokens, its pieces begin and end.
    """

    tokens: tuple[int, ...]
    message_end: int
    opens_reasoning: bool
    text: str
    form: Form
    tools: Tools
    notes: tuple[str, ...]
    places: Places
    pieces: Sequence[tuple[int, int]]

    def char(self, token: int, tokenizer: Tokenizer) -> int:
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
        return self.form.reasoning.close if self.opens_reasoning and self.form.reasoning else ""

    def parts(self, request_id: str, tell: Tell) -> AnswerParts:
        """What takes the answer apart. The ids of its calls follow from the request's id."""
        return AnswerParts(self.form, self.tools, partial(call_id, request_id), opens_reasoning=self.opens_reasoning, tell=tell)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that was given. sampled: its ids, without the one that ended it. text: as the client was shown it, in one."""

    sampled: tuple[int, ...]
    text: str
    message: Mapping[str, Any]


class Prompter:
    """Renders and encodes prompts, and remembers what was answered."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._dialogue = Dialogue(template)
        self._echoes = Echoes()
        self._literals = Literals(tokenizer.control_tokens)

    def encode(self, prompt: values.Prompt, *, tenant: str) -> Prompt:
        """The prompt's tokens. Raises BadRequestError (the template refuses, text that is not Unicode)."""
        if not isinstance(prompt, Chat):
            ids = prompt.tokens if isinstance(prompt, Raw) else tuple(self.tokenizer.encode(_unicode(prompt.text), tenant=tenant))
            return Prompt(
                ids,
                len(ids),
                opens_reasoning=False,
                text="",
                form=PLAIN,
                tools=Tools(()),
                notes=(),
                places=Places(self.template, None),
                pieces=(),
            )
        suited, notes = self._suited(prompt, tenant)
        chat, mark = self._literals.mark(suited)
        text = _unicode(self.template.render(chat, add_generation_prompt=True))
        messages = self.template.render(chat, add_generation_prompt=False)
        end = len(messages) if text.startswith(messages) else len(text)
        tokens, message_end, pieces = self.tokenizer.encode_marked(Marked(text, end, mark), tenant=tenant)
        opens, form, places = text.rstrip().endswith("<think>"), self.template.form, Places(self.template, suited)
        return Prompt(tuple(tokens), message_end, opens, text, form, Tools((*prompt.tools, *prompt.held_back)), notes, places, pieces)

    def learn_answer(self, chat: values.Prompt, prompt: Prompt, answer: Answered, *, tenant: str) -> Given | None:
        """Remember the answer, so that a later prompt that repeats it has the ids that were sampled, however the client writes it anew.
        Returns what another process has to know for that, None if nothing would do.
        """
        self.tokenizer.learn(prompt.tokens, answer.sampled, tenant=tenant)
        if not isinstance(chat, Chat) or self.tokenizer.decode(answer.sampled) != answer.text:
            return None  # a stop string cut through a token: its ids say more than the client saw
        message = {**answer.message, "content": answer.message["content"] or ""}
        self._echoes.learn(message, tenant=tenant)
        echo = self._echo(replace(chat, messages=(*chat.messages, message)), prompt, tenant)
        wording = self.tokenizer.wording(prompt.tokens, answer.sampled, echo, tenant=tenant) if echo else None
        if wording:
            self.tokenizer.learn_wording(wording)
        return Given(message, wording)

    def learn_given(self, given: Given, *, tenant: str) -> None:
        """Remember an answer that was given by this process or another."""
        self._echoes.learn(given.message, tenant=tenant)
        if given.wording:
            self.tokenizer.learn_wording(given.wording)

    def unknown(self, chat: Chat, *, tenant: str) -> list[str]:
        """Names of answers that the conversation may repeat and that are not remembered."""
        return self._echoes.unknown(chat.messages, tenant=tenant)

    def _suited(self, chat: Chat, tenant: str) -> tuple[Chat, tuple[str, ...]]:
        """The conversation as the template takes it, and notes."""
        return self._dialogue.suit(replace(chat, messages=self._echoes.restore(chat.messages, tenant=tenant)))

    def _echo(self, chat: Chat, prompt: Prompt, tenant: str) -> str:
        """What the template writes behind the prompt for its answer, up to the token that ends it; "" if it does not go on so."""
        marked, _ = self._literals.mark(self._suited(chat, tenant)[0])
        try:
            text = self.template.render(marked, add_generation_prompt=False)
        except BadRequestError:
            return ""
        end = max(text.rfind(self.tokenizer.decode([stop])) for stop in self.tokenizer.stop_ids)
        return text[len(prompt.text) : end] if text.startswith(prompt.text) else ""

    def learn(self, before: Sequence[int], stored: Sequence[int], *, tenant: str) -> None:
        """Remember how a stored conversation goes on after these tokens: `encode` gives the same ids for the same text there."""
        self.tokenizer.learn(before, stored, tenant=tenant)

    def forget(self) -> None:
        """Forget what was answered and encoded: it is worked out, or learnt from stored conversations, anew."""
        self._echoes.clear()
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

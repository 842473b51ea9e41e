"""From a conversation to the tokens that the model reads, and the place where its messages end. Knows nothing of caches or MLX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from forerun import values
from forerun.errors import BadRequestError
from forerun.text.calls.tools import Tools
from forerun.text.dialogue import Dialogue
from forerun.text.literal import Literals
from forerun.text.parts import PLAIN, AnswerParts, Form
from forerun.text.places import Places
from forerun.text.template import Template
from forerun.text.tokenizer import Marked, Tokenizer
from forerun.values import Chat, Raw


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    message_end: how many of them the next turn of the same conversation will begin with (all but the suffix that asks for an answer).
    opens_reasoning: the prompt ends inside <think>, so that the answer begins with reasoning.
    form, tools: how the answer is written, and what it may call. notes: what the template could not take as it was sent, for people.
    places: which message a place in the text belongs to.
    """

    tokens: tuple[int, ...]
    message_end: int
    opens_reasoning: bool
    form: Form
    tools: Tools
    notes: tuple[str, ...]
    places: Places

    def parts(self, request_id: str) -> AnswerParts:
        """What takes the answer apart. The ids of its calls follow from the request's id."""
        return AnswerParts(self.form, self.tools, partial(call_id, request_id), opens_reasoning=self.opens_reasoning)


class Prompter:
    """Renders and encodes prompts."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._dialogue = Dialogue(template)
        self._literals = Literals(tokenizer.control_tokens)

    def encode(self, prompt: values.Prompt, *, tenant: str) -> Prompt:
        """The prompt's tokens. Raises BadRequestError (the template refuses, text that is not Unicode)."""
        if not isinstance(prompt, Chat):
            ids = prompt.tokens if isinstance(prompt, Raw) else tuple(self._tokenizer.encode(_unicode(prompt.text), tenant=tenant))
            return Prompt(
                ids,
                len(ids),
                opens_reasoning=False,
                form=PLAIN,
                tools=Tools(()),
                notes=(),
                places=Places(self._template, None),
            )
        suited, notes = self._dialogue.suit(prompt)
        chat, mark = self._literals.mark(suited)
        text = _unicode(self._template.render(chat, add_generation_prompt=True))
        messages = self._template.render(chat, add_generation_prompt=False)
        end = len(messages) if text.startswith(messages) else len(text)
        tokens, message_end = self._tokenizer.encode_marked(Marked(text, end, mark), tenant=tenant)
        opens, form, places = text.rstrip().endswith("<think>"), self._template.form, Places(self._template, suited)
        return Prompt(tuple(tokens), message_end, opens, form, Tools((*prompt.tools, *prompt.held_back)), notes, places)

    def learn(self, before: Sequence[int], stored: Sequence[int], *, tenant: str) -> None:
        """Remember how a stored conversation goes on after these tokens: `encode` gives the same ids for the same text there."""
        self._tokenizer.learn(before, stored, tenant=tenant)


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

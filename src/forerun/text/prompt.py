"""From a conversation to the tokens that the model reads, and the place where its messages end. Knows nothing of caches or MLX."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import BadRequestError
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Raw


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    message_end: how many of them the next turn of the same conversation will begin with (all but the suffix that asks for an answer).
    opens_reasoning: the prompt ends inside <think>, so that the answer begins with reasoning.
    """

    tokens: tuple[int, ...]
    message_end: int
    opens_reasoning: bool


class Prompter:
    """Renders and encodes prompts."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def encode(self, prompt: Chat | Raw, *, tenant: str) -> Prompt:
        """The prompt's tokens. Raises BadRequestError (the template refuses, text that is not Unicode)."""
        if isinstance(prompt, Raw):
            return Prompt(prompt.tokens, len(prompt.tokens), opens_reasoning=False)
        text = self._template.render(prompt, add_generation_prompt=True)
        messages = self._template.render(prompt, add_generation_prompt=False)
        _check_unicode(text)
        tokens = self._tokenizer.encode(text, tenant=tenant)
        end = _common(tokens, self._tokenizer.encode(messages, tenant=tenant)) if text.startswith(messages) else len(tokens)
        return Prompt(tuple(tokens), end, opens_reasoning=text.rstrip().endswith("<think>"))


def _check_unicode(text: str) -> None:
    """JSON can carry half of a surrogate pair, tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!r} at character {error.start} of the rendered prompt"
        raise BadRequestError(f"a message holds half of a surrogate pair: {found}", param="messages") from error


def _common(left: list[int], right: list[int]) -> int:
    """Length of the longest common beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))

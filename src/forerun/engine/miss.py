"""What a miss looks like to people: the text on both sides of the first difference, and the field that it is in. Knows no tier."""

from __future__ import annotations

from forerun.bank.why import TOLD_TOKENS, Why
from forerun.text.places import Part, num_common
from forerun.text.prompt import Prompt
from forerun.text.tokenizer import Tokenizer
from forerun.values import Miss


def miss(why: Why, prompt: Prompt, tokenizer: Tokenizer) -> Miss | None:
    """The miss as it is reported, None if all that could be was reused."""
    if not why.kind:
        return None
    at, stored = why.shared_tokens, tokenizer.decode(why.stored)
    if not stored or at == len(prompt.tokens):  # nothing to compare with
        return Miss(why.kind, at, *Part("", ""), "", stored)
    asked = tokenizer.decode(prompt.tokens[at : at + TOLD_TOKENS])
    num_same = num_common(asked, stored)
    part = prompt.places.of(prompt.char(at, tokenizer) + num_same, stored[num_same:])
    return Miss(why.kind, at, *part, asked, stored)

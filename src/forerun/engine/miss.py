"""What a miss looks like to people: the text on both sides of the first difference, and the message that it is in. Knows no tier."""

from __future__ import annotations

from forerun.bank.why import TOLD_TOKENS, Why
from forerun.text.prompt import Prompt
from forerun.text.tokenizer import Tokenizer
from forerun.values import Miss


def miss(why: Why, prompt: Prompt, tokenizer: Tokenizer) -> Miss | None:
    """The miss as it is reported, None if all that could be was reused."""
    if not why.kind:
        return None
    at = why.shared_tokens
    is_known = at < len(prompt.tokens) and why.kind not in ("new", "bypass")
    where = prompt.places.of(len(tokenizer.decode(prompt.tokens[:at]))) if is_known else ""
    asked = tokenizer.decode(prompt.tokens[at : at + TOLD_TOKENS]) if is_known else ""
    return Miss(why.kind, at, where, asked, tokenizer.decode(why.stored))

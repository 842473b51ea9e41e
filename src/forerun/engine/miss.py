"""What a miss looks like to people: the text on both sides of the first difference, and the field that it is in. Knows no tier."""

from __future__ import annotations

from forerun.bank.miss_reason import SHOWN_TOKENS, MissReason
from forerun.text.prompt import Prompt
from forerun.text.prompt_locations import PromptLocation, num_common
from forerun.text.tokenizer import Tokenizer
from forerun.values import Miss


def miss(reason: MissReason, prompt: Prompt, tokenizer: Tokenizer) -> Miss | None:
    """The miss as it is reported, None if all that could be was reused."""
    if not reason.kind:
        return None
    at, stored = reason.shared_tokens, tokenizer.decode(reason.stored)
    if not stored or at == len(prompt.tokens):  # nothing to compare with
        return Miss(reason.kind, at, *PromptLocation("", ""), "", stored)
    asked = tokenizer.decode(prompt.tokens[at : at + SHOWN_TOKENS])
    num_same = num_common(asked, stored)
    part = prompt.locator.locate(prompt.char_offset(at, tokenizer) + num_same, stored[num_same:])
    return Miss(reason.kind, at, *part, asked, stored)

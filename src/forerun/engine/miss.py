"""A miss in a user's terms: the text of prompt and stored conversation at the divergence, and the field it lies in. Knows no tier."""

from __future__ import annotations

from forerun.bank.miss_reason import SHOWN_TOKENS, MissReason
from forerun.text.partial_match import num_common
from forerun.text.prompt import Prompt
from forerun.text.prompt_locations import PromptLocation
from forerun.text.tokenizer import Tokenizer
from forerun.values import Miss


def describe(reason: MissReason, prompt: Prompt, tokenizer: Tokenizer) -> Miss | None:
    """The miss as reported to the client, None if all that could be was reused."""
    if not reason.kind:
        return None
    at, stored = reason.shared_tokens, tokenizer.decode(reason.stored)
    if not stored or at == len(prompt.tokens):  # one of the two ends here
        return Miss(reason.kind, at, *PromptLocation("", ""), "", stored)
    prompted = tokenizer.decode(prompt.tokens[at : at + SHOWN_TOKENS])
    num_same = num_common(prompted, stored)
    location = prompt.locator.locate(prompt.char_offset(at, tokenizer) + num_same, stored[num_same:])
    return Miss(reason.kind, at, *location, prompted, stored)

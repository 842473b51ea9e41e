"""Prompts as token ids: the demo's conversation over the package's own sources, each variant begun with other files."""

from __future__ import annotations

from dataclasses import replace

from forerun.demo.conversation import SMALL, package_sources, record
from forerun.demo.turns import TEMPLATE_ARGS
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat


def prompts(context: int, num: int) -> list[list[int]]:
    """`num` prompts of about `context` tokens that share no beginning."""
    tokenizer = Tokenizer.load(DEMO_MODEL)
    prompter, sources = Prompter(tokenizer, Template.load(DEMO_MODEL)), list(package_sources().items())
    made = []
    for variant in range(num):
        start = variant * 7 % len(sources)
        scale = replace(SMALL, first_prompt_tokens=context)
        talk = record(dict(sources[start:] + sources[:start]), scale, lambda text: len(tokenizer.encode(text, tenant="")))
        messages = list(talk.opening)
        messages[0] = {"role": "system", "content": f"Session {variant:04d}. {messages[0]['content']}"}
        tokens = prompter.encode(Chat(tuple(messages), talk.tools, TEMPLATE_ARGS), tenant="").tokens
        made.append([int(token) for token in tokens])
    return made

"""A checkpoint's chat template: messages to text. A template is untrusted code, so it runs in jinja2's sandbox.

Knows nothing of tokens; the template alone decides what a message must look like.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import BadRequestError, ModelError
from forerun.text.answer_parser import detect_answer_format
from forerun.text.files import exists, read_object, read_text
from forerun.values import Chat

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Template:
    """A compiled chat template. digest: hex over its source and named tokens. answer_format: of answers to it."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        self._named_tokens = dict(named_tokens)
        self.answer_format = detect_answer_format(source)
        self.digest = sha256(json.dumps([source, self._named_tokens], sort_keys=True).encode()).hexdigest()
        try:
            self._template = _environment(source).from_string(source)
        except TemplateError as error:
            raise ModelError(f"the chat template does not compile: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> Template:
        """The template in chat_template.jinja, else in tokenizer_config.json. Raises ModelError."""
        config = read_object(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = read_text(file) if exists(file) else _default_template(config.get("chat_template"))
        if not isinstance(source, str):
            raise ModelError(f"{folder} has no chat template", hint="chat_template.jinja, or chat_template in tokenizer_config.json")
        return cls(source, _named_tokens(config))

    def render(self, chat: Chat, *, add_generation_prompt: bool) -> str:
        """The conversation as text; with add_generation_prompt it ends where the answer starts. Raises BadRequestError."""
        variables = {
            **self._named_tokens,
            **chat.template_args,
            "messages": list(chat.messages),
            "tools": list(chat.tools) or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except REFUSALS as error:
            raise BadRequestError(f"the model's chat template refuses the messages: {error}", param="messages") from error

    def attempt(self, chat: Chat, *, add_generation_prompt: bool) -> str:
        """As `render`, but "" where the template refuses the messages."""
        try:
            return self.render(chat, add_generation_prompt=add_generation_prompt)
        except BadRequestError:
            return ""


def _environment(source: str) -> ImmutableSandboxedEnvironment:
    """What templates written for Hugging Face's transformers expect. The date only where the template requires it: a prompt with today's
    date has another prefix tomorrow.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    if "strftime_now is defined" not in source:
        environment.globals["strftime_now"] = lambda format: datetime.now().astimezone().strftime(format)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON with keys in their order, without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _default_template(declared: Any) -> Any:
    """The template named "default" where a checkpoint has several."""
    if not isinstance(declared, list):
        return declared
    return next((each.get("template") for each in declared if each.get("name") == "default"), None)


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by the names that templates use; the file holds each as a string or as an object with its content."""
    declared = {name: config.get(name) for name in NAMED_TOKENS}
    plain = {name: token.get("content") if isinstance(token, dict) else token for name, token in declared.items()}
    return {name: token for name, token in plain.items() if isinstance(token, str)}

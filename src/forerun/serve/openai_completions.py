"""The OpenAI completions dialect, older than chat: a prompt is text or tokens, without a template, and the answer continues it.

Pure. A known field that would change the answer and is not supported is an error; any other is accepted and named as ignored.
Knows no engine, no HTTP and no tokens. Source: OpenAI's API reference, Completions (legacy).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from forerun.errors import BadRequestError
from forerun.serve.fields import JobFields, StopStrings, WholeNumber, limit_of, refuse, validate
from forerun.serve.formats import format_of
from forerun.serve.openai_choices import MAX_CHOICES, ParsedRequest, ResponseFormat, StreamOptions, Value, repeated
from forerun.serve.openai_logprobs import word
from forerun.values import Content, Done, Event, Job, LogprobsRequest, ModelInfo, PromptLogprobs, TextPrompt, TokenLogprob, TokenPrompt

DEFAULT_MAX_TOKENS = 16  # as OpenAI has it
# Each with the values that have no effect.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    **dict.fromkeys(("ignore_eos", "min_tokens", "stop_token_ids", "prompt_logprobs"), (False, 0, [])),
}
HINTS = {"suffix": "put the suffix into the prompt", "prompt_logprobs": "send 'logprobs' and 'echo'"}


def _as_prompts(prompt: Any) -> Any:
    """A list of prompts, also for a single one."""
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int | float)))
    return [prompt] if is_one else prompt


Text = Annotated[str, Field(min_length=1)]
Prompts = Annotated[list[str | list[WholeNumber]], Field(min_length=1, max_length=MAX_CHOICES)]


class Request(JobFields):
    """A completion request. `model` may be any name: there is one model."""

    model: str | None = None
    prompt: Annotated[Prompts, BeforeValidator(_as_prompts, json_schema_input_type=Text | list[Text] | list[int] | list[list[int]])]
    n: WholeNumber = Field(1, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: WholeNumber | None = Field(None, ge=0, le=5)
    max_tokens: WholeNumber = DEFAULT_MAX_TOKENS
    stop: StopStrings = Field([])
    response_format: dict[str, Any] = Field({})
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused."""
        unused = (name for name in self.unknown if name not in UNSUPPORTED)
        return (*unused, *(f"stream_options.{each}" for each in self.stream_options.unknown))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """The request as jobs; sampling that it leaves out is the model's default. Raises BadRequestError that names the field."""
    request = validate(Request, body)
    _check_supported(request)
    logprobs = None if request.logprobs is None else LogprobsRequest(request.logprobs, of_prompt=request.echo)
    job = partial(
        request.job,
        info=info,
        id=id,
        tenant=tenant,
        max_tokens=limit_of(request.max_tokens),
        stop=request.stop,
        logprobs=logprobs,
        output=format_of(request.response_format, "response_format"),
    )
    jobs = repeated([job(TextPrompt(each) if isinstance(each, str) else TokenPrompt(tuple(each))) for each in request.prompt], request.n)
    format = ResponseFormat("text_completion", "text_completion", partial(Choice, echoes=request.echo))
    return ParsedRequest(id, jobs, request.n, format, request.stream, request.stream_options.include_usage, request.ignored())


def _check_supported(request: Request) -> None:
    refuse(request.unknown, UNSUPPORTED, HINTS)
    if len(request.prompt) * request.n > MAX_CHOICES:
        raise BadRequestError(f"n: {len(request.prompt)} prompts with {request.n} choices each are more than {MAX_CHOICES}", param="n")
    if request.echo and request.logprobs is None and not all(isinstance(each, str) for each in request.prompt):
        hint = "send the prompt as text, or request logprobs too"
        raise BadRequestError("echo: a prompt of token ids cannot be repeated as text", param="echo", hint=hint)


class Choice:
    """One answer as text, after the prompt if that is echoed."""

    def __init__(self, job: Job, *, echoes: bool) -> None:
        self._echo = job.prompt.text if echoes and isinstance(job.prompt, TextPrompt) else ""
        self._has_logprobs, self._text = job.logprobs is not None, ""
        self._prompt: list[TokenLogprob] = []
        self._tokens: list[TokenLogprob] = []
        self._offsets: list[int] = []  # of the tokens in the text, in characters; of one inside a character, that of the character
        self._decoder, self._num_decoded = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def take(self, event: Event) -> Iterator[Value]:
        """Add an event. Yields the fields of its chunks, after one with the prompt."""
        if isinstance(event, PromptLogprobs):
            self._prompt += event.tokens
        if isinstance(event, Content | Done) and (self._echo or self._prompt):
            yield self._add(b"".join(token.text for token in self._prompt).decode(errors="replace") or self._echo, self._prompt)
            self._echo, self._prompt = "", []
        if isinstance(event, Content):
            yield self._add(event.text, event.logprobs)

    def last(self, done: Done) -> Value:
        """The logprobs of tokens without text, such as the one that ended the answer."""
        return self._add("", done.logprobs)

    def value(self) -> Value:
        """The whole text, and its logprobs if requested."""
        return self._fields(self._text, 0)

    def _add(self, text: str, tokens: Sequence[TokenLogprob]) -> Value:
        first = len(self._tokens)
        self._text += text
        for token in tokens:
            self._tokens.append(token)
            self._offsets.append(self._num_decoded)
            self._num_decoded += len(self._decoder.decode(token.text))
        return self._fields(text, first)

    def _fields(self, text: str, first: int) -> Value:
        """The text, and the logprobs of the tokens from the `first` on."""
        return {"text": text, "logprobs": _logprobs(self._tokens[first:], self._offsets[first:]) if self._has_logprobs else None}


def _logprobs(tokens: Sequence[TokenLogprob], offsets: Sequence[int]) -> Value:
    """The tokens in the columns of this dialect. One without a logprob has no alternatives either."""
    return {
        "tokens": [word(token.text, "bytes:") for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [None if token.logprob is None else _top(token) for token in tokens],
        "text_offset": list(offsets),
    }


def _top(token: TokenLogprob) -> Value:
    """The most likely tokens and the sampled one, by their text; of several with the same text the most likely counts."""
    top = {word(each.text, "bytes:"): each.logprob for each in reversed(token.top)}
    return dict(reversed(top.items())) | {word(token.text, "bytes:"): token.logprob}

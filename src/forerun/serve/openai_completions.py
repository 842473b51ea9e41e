"""The OpenAI completions dialect, older than chat: a prompt is text or tokens, read as it stands, and the answer goes on from there.

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
from forerun.serve.fields import JobFields, StopMatcher, WholeResponse, read, refuse
from forerun.serve.openai_choices import MAX_CHOICES, ObjectNames, ParsedRequest, StreamOptions, Value, repeated
from forerun.serve.openai_logprobs import word
from forerun.values import Content, Done, Event, Job, LogprobsRequest, ModelInfo, PromptLogprobs, TextPrompt, TokenLogprob, TokenPrompt

DEFAULT_MAX_TOKENS = 16  # as OpenAI has it
# Each with the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    **dict.fromkeys(("grammar", "guided_json", "guided_regex", "json_schema", "response_format", "structured_outputs"), ({}, "")),
    **dict.fromkeys(("ignore_eos", "min_tokens", "stop_token_ids", "prompt_logprobs"), (False, 0, [])),
}
HINTS = {"suffix": "put what comes after into the prompt", "prompt_logprobs": "ask for 'logprobs' and 'echo'"}


def _several(prompt: Any) -> Any:
    """A list of prompts, also of a single one."""
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int | float)))
    return [prompt] if is_one else prompt


Text = Annotated[str, Field(min_length=1)]
Prompts = Annotated[list[str | list[WholeResponse]], Field(min_length=1, max_length=MAX_CHOICES)]


class Request(JobFields):
    """A completion request. `model` may be any name: one model is served."""

    model: str | None = None
    prompt: Annotated[Prompts, BeforeValidator(_several, json_schema_input_type=Text | list[Text] | list[int] | list[list[int]])]
    n: WholeResponse = Field(1, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: WholeResponse | None = Field(None, ge=0, le=5)
    max_tokens: WholeResponse = Field(DEFAULT_MAX_TOKENS, ge=0)
    stop: StopMatcher = Field([])
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but not used."""
        known = (name for name in self.unknown if name not in UNSUPPORTED)
        return (*known, *(f"stream_options.{each}" for each in self.stream_options.unknown))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """What the request asks for; sampling that it leaves open is the model's default. Raises BadRequestError that names the field."""
    request = read(Request, body)
    _check_supported(request)
    logprobs = None if request.logprobs is None else LogprobsRequest(request.logprobs, of_prompt=request.echo)
    ask = partial(request.job, info=info, id=id, tenant=tenant, max_tokens=request.max_tokens, stop=request.stop, logprobs=logprobs)
    jobs = repeated([ask(TextPrompt(each) if isinstance(each, str) else TokenPrompt(tuple(each))) for each in request.prompt], request.n)
    form = ObjectNames("text_completion", "text_completion", partial(Choice, echoes=request.echo))
    return ParsedRequest(id, jobs, request.n, form, request.stream, request.stream_options.include_usage, request.ignored())


def _check_supported(request: Request) -> None:
    refuse(request.unknown, UNSUPPORTED, HINTS)
    if len(request.prompt) * request.n > MAX_CHOICES:
        raise BadRequestError(f"n: {len(request.prompt)} prompts with {request.n} choices each are more than {MAX_CHOICES}", param="n")
    if request.echo and request.logprobs is None and not all(isinstance(each, str) for each in request.prompt):
        hint = "send the prompt as text, or ask for logprobs too"
        raise BadRequestError("echo: a prompt of token ids cannot be repeated as text", param="echo", hint=hint)


class Choice:
    """One answer as text, which the prompt begins if it is echoed."""

    def __init__(self, job: Job, *, echoes: bool) -> None:
        self._echo = job.prompt.text if echoes and isinstance(job.prompt, TextPrompt) else ""
        self._asks, self._text = job.logprobs is not None, ""
        self._prompt: list[TokenLogprob] = []
        self._tokens: list[TokenLogprob] = []
        self._offsets = Offsets()

    def take(self, event: Event) -> Iterator[Value]:
        """What the event adds, after the prompt."""
        if isinstance(event, PromptLogprobs):
            self._prompt += event.tokens
        if isinstance(event, Content | Done) and (self._echo or self._prompt):
            yield self._add(b"".join(token.text for token in self._prompt).decode(errors="replace") or self._echo, self._prompt)
            self._echo, self._prompt = "", []
        if isinstance(event, Content):
            yield self._add(event.text, event.logprobs)

    def last(self, done: Done) -> Value:
        """The tokens without text, such as the one that ended the answer."""
        return self._add("", done.logprobs)

    def value(self) -> Value:
        """The whole text, and its tokens if they were asked for."""
        return self._fields(self._text, self._tokens, Offsets())

    def _add(self, text: str, tokens: Sequence[TokenLogprob]) -> Value:
        self._text += text
        self._tokens += tokens
        return self._fields(text, tokens, self._offsets)

    def _fields(self, text: str, tokens: Sequence[TokenLogprob], offsets: Offsets) -> Value:
        return {"text": text, "logprobs": _told(tokens, offsets) if self._asks else None}


class Offsets:
    """Where tokens begin in their text, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def next(self, token: TokenLogprob) -> int:
        """Where the token begins that follows those before. One inside a character begins with it."""
        offset = self._length
        self._length += len(self._decoder.decode(token.text))
        return offset


def _told(tokens: Sequence[TokenLogprob], offsets: Offsets) -> Value:
    """The tokens in the columns of this dialect. One without a probability has no alternatives either."""
    return {
        "tokens": [word(token.text, "bytes:") for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [None if token.logprob is None else _top(token) for token in tokens],
        "text_offset": [offsets.next(token) for token in tokens],
    }


def _top(token: TokenLogprob) -> Value:
    """The likeliest tokens and the one that was written, by their text; of several with the same text the likeliest counts."""
    top = {word(each.text, "bytes:"): each.logprob for each in reversed(token.top)}
    return dict(reversed(top.items())) | {word(token.text, "bytes:"): token.logprob}

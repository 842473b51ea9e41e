"""The OpenAI completions dialect, older than chat: a prompt is text or tokens, read as it stands, and the answer goes on from there.

Pure. A known field that would change the answer and is not supported is an error; any other is accepted and named as ignored.
Knows no engine, no HTTP and no tokens. Source: OpenAI's API reference, Completions (legacy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from forerun.errors import BadRequestError
from forerun.serve.dialect import report_of
from forerun.serve.fields import ForerunFields, SamplingFields, Stops, read, refuse
from forerun.serve.openai_chat import FINISH, StreamOptions, usage
from forerun.serve.problems import Problem
from forerun.serve.sse import END, comment, data, progress
from forerun.values import Content, Done, Event, Job, ModelInfo, Plain, Raw

DEFAULT_MAX_TOKENS = 16  # as OpenAI has it
# Each with the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "logprobs": (),
    "n": (1,),
    "best_of": (1,),
    **dict.fromkeys(("grammar", "guided_json", "guided_regex", "json_schema", "response_format", "structured_outputs"), ({}, "")),
    **dict.fromkeys(("ignore_eos", "min_tokens", "stop_token_ids", "prompt_logprobs"), (False, 0, [])),
}
HINTS = {"suffix": "put what comes after into the prompt", "logprobs": "this server does not give out probabilities yet"}


def _one(prompt: Any) -> Any:
    """The only prompt of a list of prompts."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ValueError(f"{len(prompt)} prompts at once are not supported: send a request for each")
        return prompt[0]
    return prompt


class Request(SamplingFields):
    """A completion request. `model` may be any name: one model is served."""

    model: str | None = None
    prompt: Annotated[str | list[int], BeforeValidator(_one, json_schema_input_type=str | list[Any])]
    echo: bool = False
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1)
    stop: Stops = Field([])
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    forerun: ForerunFields = ForerunFields()

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but not used."""
        known = (name for name in self.unknown if name not in UNSUPPORTED)
        return (*known, *(f"stream_options.{each}" for each in self.stream_options.unknown))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was understood. echo: what the answer begins with."""

    job: Job
    streams: bool
    includes_usage: bool
    ignored_fields: tuple[str, ...]
    echo: str


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> Asked:
    """What the request asks for; sampling that it leaves open is the model's default. Raises BadRequestError that names the field."""
    request = read(Request, body)
    refuse(request.unknown, UNSUPPORTED, HINTS)
    if request.echo and not isinstance(request.prompt, str):
        raise BadRequestError("echo: a prompt of token ids cannot be repeated as text", param="echo", hint="send the prompt as text")
    job = Job(
        id=id,
        prompt=Plain(request.prompt) if isinstance(request.prompt, str) else Raw(tuple(request.prompt)),
        sampling=request.sampling(info.defaults),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop),
        session=request.forerun.session,
        tenant=tenant,
        bank=request.forerun.bank,
    )
    echo = request.prompt if request.echo and isinstance(request.prompt, str) else ""
    return Asked(job, request.stream, request.stream_options.include_usage, request.ignored(), echo)


class _Answer:
    """What streamed and whole answers have in common."""

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        self._head = {"id": asked.job.id, "object": "text_completion", "created": created_unix_s, "model": info.name}
        self._asked = asked

    def _body(self, text: str, finish: str | None) -> dict[str, Any]:
        return self._head | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    def _report(self, done: Done) -> dict[str, Any]:
        return {"forerun": report_of(done, self._asked.ignored_fields)}


class Whole(_Answer):
    """A completion in one piece."""

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        super().__init__(asked, info, created_unix_s=created_unix_s)
        self._text = asked.echo
        self._done: Done | None = None

    def take(self, event: Event) -> None:
        """Add what this event tells."""
        if isinstance(event, Content):
            self._text += event.text
        self._done = event if isinstance(event, Done) else self._done

    def body(self) -> dict[str, Any]:
        """The completion object, once Done was taken."""
        assert self._done is not None
        return self._body(self._text, FINISH[self._done.finish]) | {"usage": usage(self._done.usage)} | self._report(self._done)


class Streamed(_Answer):
    """A completion as server-sent events."""

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        super().__init__(asked, info, created_unix_s=created_unix_s)
        self._echo = asked.echo

    def frames(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        yield from progress(event)
        if self._echo and isinstance(event, Content | Done):
            yield data(self._body(self._echo, None))
            self._echo = ""
        if isinstance(event, Content):
            yield data(self._body(event.text, None))
        if isinstance(event, Done):
            yield from self._end(event)

    def keepalive(self) -> bytes:
        """A comment."""
        return comment("keepalive")

    def failed(self, problem: Problem) -> bytes:
        """The error object as the last frame."""
        return data(problem.body())

    def _end(self, done: Done) -> Iterator[bytes]:
        last = self._body("", FINISH[done.finish])
        if self._asked.includes_usage:
            yield data(last)
            yield data(self._head | {"choices": [], "usage": usage(done.usage)} | self._report(done))
        else:
            yield data(last | self._report(done))
        yield END

"""Validates a request's JSON against a schema: wrong types and values become errors that name the field, unknown fields are collected.

Holds what all dialects have in common. Knows JSON and pydantic; knows no dialect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # typeshed leaves it out
from typing import Annotated, Any, NoReturn, TypeVar, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from forerun.errors import BadRequestError
from forerun.serve import formats
from forerun.serve.shapes import SCHEMA
from forerun.values import (
    SESSION_ID,
    AnswerRules,
    BankUse,
    CallRule,
    Chat,
    Job,
    LogprobsRequest,
    ModelInfo,
    OutputFormat,
    Prompt,
    Sampling,
)

MAX_STOPS = 64
MAX_STOP_CHARS = 1000
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LARGE_BYTES = 256 << 10  # of a body: from here on it is parsed in a thread
MOST_CONTAINERS = 250_000  # objects and lists in such a body


T = TypeVar("T")


def _as_integer(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


WholeNumber = Annotated[int, BeforeValidator(_as_integer)]  # 16.0 is an integer in JSON Schema, and some proxies rewrite 16 so


def _as_stops(stop: Any) -> Any:
    """A list, without empty strings: some clients send them for none."""
    stops = [stop] if isinstance(stop, str) else stop
    return [each for each in stops if each not in ("", None)] if isinstance(stops, list) else stops


def _as_penalty(penalty: Any) -> Any:
    return 1.0 if penalty == 0 and penalty is not False else penalty  # 0 is "none" in the other penalties, and is no divisor


def _as_word(choice: Any) -> Any:
    return choice["type"] if isinstance(choice, dict) and list(choice) == ["type"] else choice


ToolChoice = Annotated[Any, BeforeValidator(_as_word)]  # {"type": "auto"} is "auto"
Limit = WholeNumber | None  # of an answer's tokens


# The names of one limit: ours, Qwen's and mlx-vlm's, SGLang's, vLLM's, llama.cpp's two.
THINKING_LIMITS = (
    *("max_thinking_tokens", "thinking_budget", "reasoning_budget", "thinking_token_budget"),
    *("thinking_budget_tokens", "reasoning_budget_tokens"),
)
FREE_CALLS = CallRule()
EXTENSION_FORMATS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema")


def _first(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given


def limit_of(max_tokens: int) -> int | None:
    """The limit in a dialect in which 0 means prefill only; below 0 is none."""
    return max_tokens if max_tokens >= 0 else None


class Fields(BaseModel):
    """A JSON object of a request. Strict: "1" is not a number and 1 is not a boolean; null counts as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that are not in the schema."""
        return self.model_extra or {}


SessionId = Annotated[str, Field(min_length=1, max_length=200, pattern=SESSION_ID)]


class StrictFields(Fields):
    """A JSON object that no other server has. Nobody sends it by accident, so an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid")


class ForerunFields(StrictFields):
    """The `forerun` object of a request."""

    session: SessionId | None = None
    bank: BankUse = "use"
    enforce_calls: bool | None = None
    break_loops: bool | None = None


class JobFields(Fields):
    """Common to all dialects: the sampling parameters, under the names of OpenAI's dialects and their usual extensions (absent: the
    model's default), the forms of an answer that only other servers have, the limit of its reasoning, and `forerun`.
    """

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: WholeNumber | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: WholeNumber | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    repetition_penalty: Annotated[float | None, BeforeValidator(_as_penalty)] = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None = None
    guided_json: Annotated[Any, SCHEMA] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    max_thinking_tokens: Annotated[Limit, Field(validation_alias=AliasChoices(*THINKING_LIMITS))] = None
    forerun: ForerunFields = ForerunFields()

    def job(
        self,
        prompt: Prompt,
        info: ModelInfo,
        *,
        id: str,
        tenant: str,
        max_tokens: int | None,
        stop: Sequence[str] = (),
        logprobs: LogprobsRequest | None = None,
        output: OutputFormat | None = None,
        calls: CallRule = FREE_CALLS,
        thinking_tokens: int | None = None,
    ) -> Job:
        """The job of this prompt; sampling that is left out is the model's default. output, thinking_tokens: from fields of the dialect.

        Raises BadRequestError.
        """
        output = self.output(output)
        return Job(
            id,
            formats.shown(prompt, output) if isinstance(prompt, Chat) else prompt,
            self.sampling(info.defaults),
            max_tokens,
            tuple(stop),
            self.forerun.session,
            tenant,
            self.forerun.bank,
            logprobs,
            output=output,
            calls=self._calls(calls, info.rules),
            reasoning_tokens=self._thinking_tokens(thinking_tokens, info.rules),
            is_loop_broken=_first(self.forerun.break_loops, info.rules.break_loops),
        )

    def output(self, own: OutputFormat | None) -> OutputFormat | None:
        """The form of the answer; own: that of the dialect's own field. Raises BadRequestError for two."""
        return formats.only([own, *formats.extension_formats({name: getattr(self, name) for name in EXTENSION_FORMATS})])

    def _calls(self, calls: CallRule, rules: AnswerRules) -> CallRule:
        """The switch leaves calls free of what nobody asked for; what the request itself asks for is enforced anyway."""
        is_restricted = calls.is_required or calls.allowed is not None or not calls.is_parallel or bool(calls.strict)
        return replace(calls, is_enforced=is_restricted or _first(self.forerun.enforce_calls, rules.enforce_calls))

    def _thinking_tokens(self, own: int | None, rules: AnswerRules) -> int | None:
        """The lowest limit; below 0 is none."""
        requested = limit_of(-1 if (found := _first(own, self.max_thinking_tokens)) is None else found)
        return min((each for each in (requested, rules.max_thinking_tokens) if each is not None), default=None)

    def sampling(self, defaults: Sampling) -> Sampling:
        """The sampling parameters: those given here, the defaults for the rest."""
        given = {each.name: getattr(self, each.name) for each in fields(Sampling) if getattr(self, each.name) is not None}
        if given.get("top_k") == -1:  # "all", as many clients send it
            given["top_k"] = 0
        if self.logit_bias is not None:
            given["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return replace(defaults, **given)


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(_as_stops, json_schema_input_type=str | list[str])]
S = TypeVar("S", bound=Fields)
BODY_HINT = "send one JSON object, in UTF-8"


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Half of a surrogate pair, which clients produce when they split text, becomes U+FFFD.

    Raises BadRequestError.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        value = _decoder(len(body)).decode(text)
        if ESCAPED_SURROGATE.search(text) or not _is_unicode(text):
            text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            value = _decoder(len(body)).decode(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}", hint=BODY_HINT) from error
    if not isinstance(value, dict):
        raise BadRequestError(f"the body is JSON, but {type(value).__name__} and not an object", hint=BODY_HINT)
    return value


async def parse_body(body: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of the JSON object in a body; of a large one in a thread, as other requests would wait. Raises BadRequestError."""
    if len(body) < LARGE_BYTES:
        return parse(parse_object(body))
    return await asyncio.to_thread(lambda: parse(parse_object(body)))


def _decoder(num_bytes: int) -> json.JSONDecoder:
    """A decoder of JSON; of a large body the one in Python, since the one in C lets no other thread run before its end.

    It raises BadRequestError for more than MOST_CONTAINERS, which stop all threads while they are made, collected and freed.
    """
    decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)
    if num_bytes >= LARGE_BYTES:
        numbers = count(1)
        decoder.parse_object, decoder.parse_array = (_limited(parse, numbers) for parse in (decoder.parse_object, decoder.parse_array))
        decoder.scan_once = py_make_scanner(decoder)
    return cast(json.JSONDecoder, decoder)


def _limited(parse: Callable[..., Any], numbers: Iterator[int]) -> Callable[..., Any]:
    def parse_next(*args: Any) -> Any:
        if next(numbers) > MOST_CONTAINERS:
            raise BadRequestError(f"the body has more than {MOST_CONTAINERS:,} objects and lists", hint="shorten the conversation")
        return parse(*args)

    return parse_next


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def validate(schema: type[S], value: dict[str, Any]) -> S:
    """The object in the form of the schema. Raises BadRequestError that names the first wrong field."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = path(first["loc"])
        raise BadRequestError(
            f"{field}: {first['msg'].removeprefix('Value error, ')}", param=field, hint=f"correct {field!r} and send it again"
        ) from error
    except RecursionError as error:
        raise BadRequestError("the body is nested too deeply", hint="send content of fewer levels") from error


def check_required(part: Fields, noun: str, type: str, required: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if a part of this type lacks a required field. required: names of fields, by type."""
    for name in required.get(type, ()):
        if getattr(part, name) is None:
            raise ValueError(f"{noun} of type {type!r} needs {name!r}")


def refuse(unknown: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], hints: Mapping[str, str]) -> None:
    """Raises BadRequestError for a field that would change the answer. unsupported: such fields, each with its values without effect."""
    for name, value in unknown.items():
        if name in unsupported and value not in unsupported[name]:
            message = f"{name}: {value!r:.200} is not supported and would change the answer"
            raise BadRequestError(message, param=name, hint=hints.get(name, f"leave {name!r} out"))


def path(location: Sequence[str | int]) -> str:
    """A location in JSON in the usual notation: messages[0].content."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call as an object; {} if they are cut off or malformed, since half of them are of no use."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")

"""Reading a request's JSON against a schema: wrong types and values become errors that name the field, unknown fields are only named.

Holds what all dialects have in common. Knows JSON and pydantic; knows no dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from forerun.errors import BadRequestError
from forerun.values import SESSION_ID, BankUse, Job, LogprobsRequest, ModelInfo, Prompt, Sampling

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # escaped, or as it stands


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


WholeResponse = Annotated[int, BeforeValidator(_whole)]  # 16.0 is an integer in JSON Schema, and what some proxies make of 16


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class Fields(BaseModel):
    """A JSON object of a request. Strict: "1" is no number and 1 is no boolean; null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that the schema does not have."""
        return self.model_extra or {}


SessionId = Annotated[str, Field(min_length=1, max_length=200, pattern=SESSION_ID)]


class ForerunFields(Fields):
    """The `forerun` object of a request: what no other server has. Nobody sends it by accident, so an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid")

    session: SessionId | None = None
    bank: BankUse = "use"


class JobFields(Fields):
    """What all dialects share: how tokens are drawn, under the names of OpenAI's dialects and their usual extensions (absent: as the model
    suggests), and `forerun`.
    """

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: WholeResponse | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: WholeResponse | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None = None
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
    ) -> Job:
        """The job of this prompt; sampling that is left open is the model's default."""
        session, bank = self.forerun.session, self.forerun.bank
        return Job(id, prompt, self.sampling(info.defaults), max_tokens, tuple(stop), session, tenant, bank, logprobs)

    def sampling(self, defaults: Sampling) -> Sampling:
        """The law to draw by: what is given here, for the rest the defaults."""
        given = {each.name: getattr(self, each.name) for each in fields(Sampling) if getattr(self, each.name) is not None}
        if given.get("top_k") == -1:  # another way to say "all", common among clients
            given["top_k"] = 0
        if self.logit_bias is not None:
            given["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return replace(defaults, **given)


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopMatcher = Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(_listed, json_schema_input_type=str | list[str])]
S = TypeVar("S", bound=Fields)
BODY_HINT = "send one JSON object, in UTF-8"


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Half of a surrogate pair, which clients make when they cut text, becomes U+FFFD.

    Raises BadRequestError.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        value = json.loads(text, parse_constant=_refuse_constant)
        if SURROGATE.search(text):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}", hint=BODY_HINT) from error
    if not isinstance(value, dict):
        raise BadRequestError(f"the body is JSON, but {type(value).__name__} and not an object", hint=BODY_HINT)
    return value


def read(schema: type[S], value: dict[str, Any]) -> S:
    """The object as the schema has it. Raises BadRequestError that names the first field that is wrong."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = path(first["loc"])
        raise BadRequestError(
            f"{field}: {first['msg'].removeprefix('Value error, ')}", param=field, hint=f"correct {field!r} and ask again"
        ) from error


def refuse(unknown: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], hints: Mapping[str, str]) -> None:
    """Raises BadRequestError if a field would change the answer. unsupported: such fields, each with the values that ask for nothing."""
    for name, value in unknown.items():
        if name in unsupported and value not in unsupported[name]:
            message = f"{name}: {value!r} is not supported and would change the answer"
            raise BadRequestError(message, param=name, hint=hints.get(name, f"leave {name!r} out"))


def joined(content: Any, types: Collection[str]) -> Any:
    """One string for a list of text parts, of these types: how a client cuts its text does not change what the model reads."""
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in types or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise ValueError(f"part {index} is {kind!r}, only text parts are supported")
    return "".join(part["text"] for part in content)


def path(location: Sequence[str | int]) -> str:
    """A place in JSON as people write it: messages[0].content."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def arguments_of(text: str) -> dict[str, Any]:
    """The object that a call's arguments are. None of a call that was cut off or is malformed: nobody can act on half of them."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")

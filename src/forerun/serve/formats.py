"""The form that a request sets for its answer's text: from the fields of all dialects to an OutputFormat, and to the prompt.

Pure. Knows no grammar: whether a schema or a grammar can be enforced is found out later. Sources: OpenAI's and Anthropic's API references;
vLLM's `structured_outputs` and the `guided_` fields before it; llama.cpp's server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from forerun.errors import BadRequestError
from forerun.values import Chat, FormatKind, OutputFormat

FORMAT_HINT = "'text', 'json_object' and 'json_schema' are formats"
SCHEMA_INSTRUCTION = "Your answer must be JSON that fits this JSON schema, with keys in the schema's order, and nothing else:\n"
OBJECT_INSTRUCTION = "Your answer must be one JSON object and nothing else."
# What vLLM calls each kind, in `structured_outputs` and, after "guided_", in fields of their own.
VLLM_KINDS = ("json", "regex", "choice", "grammar")


def format_of(value: Mapping[str, Any], param: str, *, is_strict: bool = False) -> OutputFormat | None:
    """The format in `response_format` of chat, `text.format` of Responses or `output_config.format` of messages; None for text or {}.

    A schema is in `json_schema` (chat) or beside the type. is_strict: where the format does not say. Raises BadRequestError.
    """
    kind, config, where = value.get("type"), value, param
    if kind == "json_schema" and isinstance(value.get("json_schema"), dict):
        config, where = value["json_schema"], f"{param}.json_schema"
    if kind == "text" or not value:
        return None
    if kind == "json_object" and config.get("schema") is None:
        return OutputFormat("json_object", "", is_strict, param)
    if kind not in ("json_object", "json_schema"):
        raise BadRequestError(f"{param}.type: {kind!r:.200} is not supported", param=f"{param}.type", hint=FORMAT_HINT)
    strict = config.get("strict")
    return schema_format(
        _described(config, f"{where}.schema"), f"{where}.schema", is_strict=is_strict if strict is None else strict is True
    )


def _described(config: Mapping[str, Any], param: str) -> Any:
    """The schema; the format's description, which is for the model, becomes the schema's if that has none."""
    schema, text = config.get("schema"), config.get("description")
    return {"description": text, **schema} if isinstance(schema, dict) and isinstance(text, str) and "description" not in schema else schema


def schema_format(schema: Any, param: str, *, is_strict: bool = False) -> OutputFormat:
    """JSON of this schema: an object, or its JSON text. Raises BadRequestError."""
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(schema, dict):
            raise BadRequestError(f"{param}: a JSON schema is an object", param=param, hint="send the schema itself, as JSON")
        return OutputFormat("json_schema", json.dumps(schema, ensure_ascii=False), is_strict, param)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{param}: the schema is not JSON, or nested too deeply", param=param) from error


def extension_formats(fields: Mapping[str, Any]) -> Iterator[OutputFormat]:
    """The formats in fields that are not OpenAI's: vLLM's `structured_outputs` and `guided_...`, llama.cpp's `grammar` and `json_schema`.

    fields: those that the request has. Raises BadRequestError.
    """
    options = fields.get("structured_outputs") or {}
    if options.get("structural_tag"):
        raise BadRequestError("structured_outputs.structural_tag is not supported", param="structured_outputs.structural_tag")
    for kind in VLLM_KINDS:
        yield from _vllm_format(kind, fields.get(f"guided_{kind}"), f"guided_{kind}")
        yield from _vllm_format(kind, options.get(kind), f"structured_outputs.{kind}")
    if options.get("json_object") is True:
        yield OutputFormat("json_object", "", False, "structured_outputs.json_object")
    if fields.get("grammar"):
        yield OutputFormat("gbnf", fields["grammar"], True, "grammar")
    if fields.get("json_schema") is not None:
        yield schema_format(fields["json_schema"], "json_schema")


def _vllm_format(kind: str, value: Any, param: str) -> Iterator[OutputFormat]:
    if value is None or value in ("", []):
        return
    if kind == "json":
        yield schema_format(value, param)
    elif kind == "choice":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise BadRequestError(f"{param}: choices are a list of strings", param=param)
        yield OutputFormat("choice", json.dumps(value, ensure_ascii=False), True, param)
    elif not isinstance(value, str):
        raise BadRequestError(f"{param}: a {kind} is a string", param=param)
    else:
        grammar: FormatKind = "gbnf" if "::=" in value else "lark"  # vLLM takes both in one field
        yield OutputFormat("regex" if kind == "regex" else grammar, value, True, param)


def only(formats: Iterable[OutputFormat | None]) -> OutputFormat | None:
    """The one format of a request, None if it has none. Raises BadRequestError for two."""
    found = [each for each in formats if each is not None]
    if len(found) > 1:
        message = f"{found[1].param}: the form of the answer is set by {found[0].param} already"
        raise BadRequestError(message, param=found[1].param, hint="send one of the two")
    return found[0] if found else None


def shown(chat: Chat, output: OutputFormat | None) -> Chat:
    """The conversation with an instruction that shows the model what JSON its answer must be, at the end of its system message.

    A model that does not know of the form fights the grammar. The text depends on the format alone, so each turn repeats it.
    """
    if output is None or output.kind not in ("json_object", "json_schema"):
        return chat
    instruction = OBJECT_INSTRUCTION if output.kind == "json_object" else SCHEMA_INSTRUCTION + output.definition
    first = dict(chat.messages[0])
    if first["role"] != "system":
        return replace(chat, messages=({"role": "system", "content": instruction}, *chat.messages))
    return replace(chat, messages=(first | {"content": f"{first['content']}\n\n{instruction}"}, *chat.messages[1:]))

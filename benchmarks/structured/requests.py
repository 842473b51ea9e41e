"""Requests whose answers must have a form, and the check of an answer: schemas of the JSON-Schema-Test-Suite, tools of recorded clients."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jsonschema import Draft202012Validator

SUITE = "jsonschema==4.26.0"  # its source distribution has the suite under json/tests
RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings"
ELSEWHERE = ('"$ref": "http', '"$ref": "urn:', '"$id"', "$dynamicRef", "$anchor")
NOTES = ("description", "title", "examples", "$schema", "$comment")
NAMED = ("properties", "$defs", "definitions", "patternProperties")
Check = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class FormRequest:
    """fields: of the request that set the form. check: what is wrong with a message, "" if nothing is."""

    name: str
    fields: dict[str, Any]
    check: Check


def suite_schemas() -> list[tuple[str, Any]]:
    """The suite's schemas of draft 2020-12 with names; those that refer to others by address are left out."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, SUITE]
        subprocess.run(command, check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        return list(_schemas(archive))


def _schemas(archive: Path) -> Iterator[tuple[str, Any]]:
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda each: each.name):
            path = Path(member.name)
            if path.suffix == ".json" and path.parent.name == "draft2020-12" and (file := files.extractfile(member)):
                for case in json.load(file):
                    if isinstance(case, dict) and not any(word in json.dumps(case["schema"]) for word in ELSEWHERE):
                        yield f"{path.stem}: {case['description']}", _plain(case["schema"])


def _plain(schema: Any) -> Any:
    return {key: value for key, value in schema.items() if key != "$schema"} if isinstance(schema, dict) else schema


def tool_lists() -> list[tuple[str, list[dict[str, Any]]]]:
    """The tools of the recorded clients in the chat dialect, as whole lists and one by one; texts for the model are left out."""
    lists: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for file in sorted(RECORDINGS.glob("*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).decode().split("\n")[:-1]:
            body = json.loads(line)["body"]
            body = json.loads(body) if isinstance(body, str) else body
            tools = [tool for each in ((body or {}).get("tools") or ()) if (tool := _function(each))]
            if tools:
                lists.setdefault(json.dumps(tools), (file.name.split(".")[0], tools))
    whole = list(lists.values())
    single = {json.dumps(tool): (client, [tool]) for client, tools in whole for tool in tools}
    return [(f"{client}: {', '.join(t['function']['name'] for t in tools[:3])}", tools) for client, tools in (*whole, *single.values())]


def _function(tool: dict[str, Any]) -> dict[str, Any] | None:
    function = tool.get("function") or tool
    schema = next((function[name] for name in ("parameters", "input_schema") if isinstance(function.get(name), dict)), None)
    if not isinstance(function.get("name"), str) or schema is None:
        return None
    return {"type": "function", "function": {"name": function["name"], "parameters": _without_notes(schema)}}


def _without_notes(node: Any, *, is_names: bool = False) -> Any:
    """is_names: keys of the node are names of the user's, not keywords."""
    if isinstance(node, list):
        return [_without_notes(each) for each in node]
    if not isinstance(node, dict):
        return node
    named = ("properties", "$defs", "definitions", "patternProperties")
    return {
        key: _without_notes(value, is_names=key in named and not is_names) for key, value in node.items() if is_names or key not in NOTES
    }


def of_schemas(schemas: list[tuple[str, Any]]) -> list[FormRequest]:
    """An answer in the form of each schema."""

    def asked(name: str, schema: Any) -> FormRequest:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        return FormRequest(name, {"response_format": form}, lambda message: error_of(message["content"], schema))

    return [asked(name, schema) for name, schema in schemas]


def of_tools(lists: list[tuple[str, list[dict[str, Any]]]]) -> list[FormRequest]:
    """At least one call of each list's tools."""

    def asked(name: str, tools: list[dict[str, Any]]) -> FormRequest:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        return FormRequest(name, {"tools": tools, "tool_choice": "required"}, lambda message: error_of_calls(message, schemas))

    return [asked(name, tools) for name, tools in lists]


def error_of_calls(message: dict[str, Any], schemas: dict[str, Any]) -> str:
    """What is wrong with a message that must be calls, "" if nothing is."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return "no call"
    unknown = [call["name"] for call in calls if call["name"] not in schemas]
    if unknown:
        return f"calls of {unknown}"
    return next((error for call in calls if (error := error_of(call["arguments"], schemas[call["name"]]))), "")


def error_of(text: str, schema: Any) -> str:
    """Why the text is no JSON of the schema, "" if it is."""
    try:
        error = next(iter(Draft202012Validator(schema).iter_errors(json.loads(text))), None)
    except ValueError as invalid:
        return f"no JSON: {invalid}: {text[:200]}"
    return f"{error.message[:200]}: {text[:200]}" if error else ""


def mixed(*kinds: list[FormRequest]) -> list[FormRequest]:
    """All of them, in turns."""
    return [each for each in chain.from_iterable(zip_longest(*kinds)) if each]

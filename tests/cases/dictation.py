"""A real application whose model writes a dictated text, and a request to it in each dialect with tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from tests.contracts.test_dialect import CLIENTS, ClientAnswer
from tests.engine.engines import Rig, running
from tests.fake_family import after
from tests.serve.asking import values
from tests.talking import tokenizer

from forerun.engine.engine import Run
from forerun.models.load import DEMO_MODEL
from forerun.serve.app import build
from forerun.text.template import Template
from forerun.values import Job

CASES = Path(__file__).parents[1] / "data/cases"
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TAGS = {
    "qwen": "<function=",
    "hermes": "<tool_call>",
    "glm": "<arg_key>",
    "gemma": "<|tool_call>",
    "function gemma": "<start_function_call>",
}


def case(name: str) -> Any:
    """A recorded case."""
    return json.loads((CASES / name).read_text())


def dictate(text: str, path: str, body: Mapping[str, Any], *, written: str) -> httpx.Response:
    """The response to a request, if the model writes the text. written: the form of calls that the template teaches."""
    return asyncio.run(_dictate(text, path, body, written))


def answers(text: str, *, written: str, tools: Mapping[str, Any], **body: Any) -> list[ClientAnswer]:
    """The answer as clients of each dialect assemble it, whole and streamed. tools: the schemas of parameters by name."""
    found = []
    for name, path in PATHS.items():
        client = CLIENTS[name]
        request = client.request | {"tools": _tools(name, tools)} | body
        whole, streamed = (dictate(text, path, request | {"stream": stream}, written=written) for stream in (False, True))
        found += [client.whole(whole.json()), client.streamed(values(streamed.text))]
    return found


async def _dictate(text: str, path: str, body: Mapping[str, Any], written: str) -> httpx.Response:
    source = (DEMO_MODEL / "chat_template.jinja").read_text()
    async with running(template=Template(f"{source}{{#- {TAGS[written]} -#}}", {})) as rig:
        _script(rig, text)
        transport = httpx.ASGITransport(build(rig.engine, keys={}, host="127.0.0.1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8484") as client:
            response = await client.post(path, json=dict(body))
    assert response.status_code == 200, response.text
    return response


def _script(rig: Rig, text: str) -> None:
    """Let the model write the text after each prompt, and stop."""
    submit, ids = rig.engine.submit, tokenizer().encode(text, tenant="script")

    async def submit_scripted(job: Job) -> Run:
        prompt = rig.engine.prompter.encode(job.prompt, tenant=job.tenant)
        rig.family.script = after(len(prompt.tokens), ids, min(tokenizer().stop_ids))
        return await submit(job)

    rig.engine.submit = submit_scripted  # type: ignore[method-assign]


def _tools(dialect: str, tools: Mapping[str, Any]) -> list[Any]:
    if dialect == "messages":
        return [{"name": name, "input_schema": schema} for name, schema in tools.items()]
    functions = [{"name": name, "parameters": schema} for name, schema in tools.items()]
    return [{"type": "function", "function": each} if dialect == "chat" else {"type": "function", **each} for each in functions]

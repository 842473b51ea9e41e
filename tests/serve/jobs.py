"""Jobs of requests in each dialect."""

from __future__ import annotations

from typing import Any

from tests.serve.engine_double import INFO

from forerun.serve.app import CHAT, COMPLETIONS, MESSAGES
from forerun.serve.dialect import Dialect
from forerun.serve.response_routes import RESPONSES
from forerun.values import Chat, Job, ModelInfo

HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}, "ü": {}}, "required": ["z", "a"]}
DIALECTS: dict[str, tuple[Dialect[Any], dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [HELLO]}),
    "completions": (COMPLETIONS, {"prompt": "hello"}),
    "messages": (MESSAGES, {"messages": [HELLO], "max_tokens": 100}),
    "responses": (RESPONSES, {"input": "hello"}),
}
CHATS = ("chat", "messages", "responses")


def parsed(dialect: str, body: dict[str, Any], info: ModelInfo = INFO) -> Any:
    """A request after parsing; fields that are not in the body are those of a plain one."""
    given, plain = DIALECTS[dialect]
    return given.parse(plain | body, info, id="id_1", tenant="")


def job(dialect: str, body: dict[str, Any], info: ModelInfo = INFO) -> Job:
    """Its first job."""
    found: Job = parsed(dialect, body, info).jobs[0]
    return found


def messages(dialect: str, body: dict[str, Any]) -> tuple[Any, ...]:
    """The messages for the template."""
    prompt = job(dialect, body).prompt
    assert isinstance(prompt, Chat)
    return prompt.messages


def declared(dialect: str, name: str, **more: Any) -> dict[str, Any]:
    """A function in the dialect's form."""
    forms = {
        "chat": {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}},
        "messages": {"name": name, "input_schema": SCHEMA, **more},
        "responses": {"type": "function", "name": name, "parameters": SCHEMA, **more},
    }
    return forms[dialect]

"""The prompt tokens of a request, computed in this process or in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.text.prompt import Prompter

SentRequest = tuple[str, dict[str, Any]]  # a route, and a body in its dialect


@cache
def prompter() -> Prompter:
    """The bundled model's."""
    from forerun.models.load import DEMO_MODEL
    from forerun.text.prompt import Prompter
    from forerun.text.template import Template
    from forerun.text.tokenizer import Tokenizer

    return Prompter(Tokenizer.load(DEMO_MODEL), Template.load(DEMO_MODEL))


def tokens_of(request: SentRequest) -> list[int]:
    """The ids of the request's prompt, by the bundled model's template and tokenizer."""
    from tests.serve.engine_double import INFO

    from forerun.serve.app import CHAT, MESSAGES
    from forerun.serve.response_routes import RESPONSES

    path, body = request
    dialect: Any = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}[path]
    return list(prompter().encode(dialect.parse(body, INFO, id="id_1", tenant="").jobs[0].prompt, tenant="").tokens)


def tokens_elsewhere(requests: list[SentRequest]) -> list[list[int]]:
    """The same in another process, in which sets have another order."""
    environ = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, __file__], input=json.dumps(requests), env=environ, capture_output=True, text=True, check=True)
    found: list[list[int]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    print(json.dumps([tokens_of((path, body)) for path, body in json.load(sys.stdin)]))

"""A real server process around the fake family of the tests, whose model writes the scripted answers to the task, token for token.

HTTP, dialects, tokenizer, template, bank, worker and request log are the server's own: every prompt is tokenised, prefilled into the bank
and restored from it. Prints its address as `forerun serve --json` does; a signal ends it in order. Besides its request log it writes what
the analysis needs: `prompts.jsonl` (each prompt as it was parsed and tokenised) and `http.jsonl` (each response's status).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun import config
from forerun.demo.server import request_log

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forerun.engine.engine import Run
    from forerun.values import Job

ROOT = Path(__file__).resolve().parents[2]
NAME = "scripted"
CONTEXT_TOKENS = 131_072


def command(home: Path, folder: Path, port: int) -> list[str]:
    """The command line of such a server: its bank and logs below `home`, the task in `folder`, a free port if it is 0."""
    return [sys.executable, __file__, str(home), str(folder), str(port)]


class Script:
    """What follows which token: answers of concurrent requests do not mix, since their prompts have other lengths or sums."""

    def __init__(self, weights: Sequence[int], stop: int) -> None:
        self._weights, self._stop = weights, stop
        self._following: dict[tuple[int, int, int], int] = {}

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Have `answer` written after `prompt`, and then the end."""
        position, token, total = len(prompt), prompt[-1], sum(self._weights[each] for each in prompt)
        for following in (*answer, self._stop):
            self._following[position, token, total] = following
            position, token, total = position + 1, following, total + self._weights[following]

    def __call__(self, position: int, token: int, total: int) -> int:
        """The script of a fake family."""
        return self._following.get((position, token, total), self._stop)


class StatusLog:
    """Writes each request's method, path and status to a file; of an error, what was sent and what was responded, too."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app, self._file = app, file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, sent, responded = 0, bytearray(), bytearray()

        async def receive_logged() -> Message:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def send_logged(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if status >= 400:
                responded.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_logged, send_logged)
        finally:
            line = {"method": scope["method"], "path": scope["path"], "status": status}
            if status >= 400 or not status:
                line |= {"sent": sent.decode(errors="replace"), "response": responded.decode(errors="replace")}
            append(self._file, line)


def append(file: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON."""
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def main() -> None:
    """Serve until a signal."""
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
    home, folder, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    config.prepare(config.Config.model_validate({}))
    from tests.engine.engines import Rig
    from tests.talking import tokenizer

    from client_task.script import ScriptedAnswer, answer_to
    from forerun.cli.serve import listen, run
    from forerun.engine import prompt_encoding
    from forerun.engine.request_recorder import RequestLog
    from forerun.request_log.file import LogFile
    from forerun.serve.app import build
    from forerun.values import Chat

    log = RequestLog(LogFile(request_log(home / "bank"), 1 << 26), NAME, with_content=False)
    rig = Rig(home / "bank", context_tokens=CONTEXT_TOKENS, log=log)
    rig.family.context_tokens = CONTEXT_TOKENS
    rig.engine.info = replace(rig.engine.info, name=NAME)
    rig.gate.open()
    words, stop = tokenizer(), min(tokenizer().stop_ids)
    rig.family.script = script = Script([id % 7 for id in range(words.size)], stop)
    submit = rig.engine.submit

    async def submit_scripted(job: Job) -> Run:
        prompt = prompt_encoding.encode(rig.engine.prompter, rig.engine.worker.model().bank, job, CONTEXT_TOKENS)
        answer = answer_to(job.prompt, folder) if isinstance(job.prompt, Chat) else ScriptedAnswer("", "I see.")
        written = words.encode(answer.written(opens_reasoning=prompt.opens_reasoning), tenant="script")
        script.add(prompt.tokens, written)
        chat = {"messages": job.prompt.messages, "tools": job.prompt.tools} if isinstance(job.prompt, Chat) else {}
        append(home / "prompts.jsonl", {"id": job.id, "prompt": prompt.tokens, "answer": written, **chat})
        return await submit(job)

    rig.engine.submit = submit_scripted  # type: ignore[method-assign]
    listener = listen("127.0.0.1", port)
    line = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    app: Any = StatusLog(build(rig.engine, keys={}, host="127.0.0.1"), home / "http.jsonl")
    asyncio.run(run(rig.engine, app, listener, lambda: print(json.dumps(line), flush=True), keep_alive_s=75))


if __name__ == "__main__":
    main()

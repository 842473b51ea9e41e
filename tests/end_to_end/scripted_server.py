"""A real server process around the fake family, which generates the text that the last message of each request dictates.

Engine, bank, dialects and sockets are the real ones. Prints its address as `forerun serve --json` does; a signal stops it in order.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forerun import config

if TYPE_CHECKING:
    from forerun.engine.engine import Run
    from forerun.values import Job, Prompt

SAY = "Say: "  # the rest of the message after it is the answer
ELSE = "I see."


def command(bank_dir: Path) -> list[str]:
    """The command line of such a server."""
    return [sys.executable, __file__, str(bank_dir)]


def answer_to(prompt: Prompt) -> str:
    """The text that the model generates."""
    from forerun.values import Chat, TextPrompt

    last = prompt.messages[-1]["content"] if isinstance(prompt, Chat) else prompt.text if isinstance(prompt, TextPrompt) else ""
    return last.partition(SAY)[2] or ELSE


def main() -> None:
    """Serve until a signal."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    config.prepare(config.Config())
    from tests.engine.engines import Rig
    from tests.fake_family import after
    from tests.talking import tokenizer

    from forerun.cli.serve import listen, run
    from forerun.serve.app import build

    rig = Rig(Path(sys.argv[1]))
    rig.gate.open()
    submit = rig.engine.submit

    async def submit_scripted(job: Job) -> Run:
        prompt = rig.engine.prompter.encode(job.prompt, tenant=job.tenant)
        answer = tokenizer().encode(answer_to(job.prompt), tenant="script")
        rig.family.script = after(len(prompt.tokens), answer, min(tokenizer().stop_ids))
        return await submit(job)

    rig.engine.submit = submit_scripted  # type: ignore[method-assign]
    listener = listen("127.0.0.1", 0)
    line = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    asyncio.run(
        run(
            rig.engine,
            build(rig.engine, keys={}, host="127.0.0.1"),
            listener,
            lambda: print(json.dumps(line), flush=True),
            keep_alive_s=config.Config().keep_alive_s,
        )
    )


if __name__ == "__main__":
    main()

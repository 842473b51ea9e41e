"""Starts, for each line that it reads, a child that serves HTTP until it is killed: the real server around the fake family.

Line: folder of the bank. Printed: the child's number and its port once it answers, "dead" when it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.engine.engines import Rig  # all that the child needs, before it is forked: what is imported computes nothing yet
from tests.talking import tokenizer

from forerun.cli.serve import listen, run
from forerun.serve.app import build


def serve(folder: Path) -> None:
    """Serve on a free port until killed."""
    listener = listen("127.0.0.1", 0)
    engine = Rig(folder).engine
    app = build(engine, keys={}, host="127.0.0.1")
    asyncio.run(run(engine, app, listener, lambda: print(os.getpid(), listener.getsockname()[1], flush=True), keep_alive_s=75))


def main() -> None:
    tokenizer()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(Path(line.strip()))
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()

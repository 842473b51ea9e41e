"""`forerun serve` that writes a line of JSON for each thing that the MLX thread does: what, when, for whom.

    python benchmarks/traced/serve.py TRACE [options of `forerun serve`]

The methods are wrapped here: the server itself knows no trace. Times are of time.perf_counter().
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from forerun import cli
from forerun.cli import serve


def main() -> None:
    trace = open(sys.argv.pop(1), "w", buffering=1)  # noqa: PTH123, SIM115 - for the life of the process
    start = serve.started

    def started(config: Any) -> Any:
        wrap(trace)
        return start(config)

    serve.started = started
    sys.argv.insert(1, "serve")
    cli.main()


def wrap(trace: TextIO) -> None:
    """From now on each of these methods writes a line. Imports MLX: the process must be prepared."""
    from forerun.engine.batch import Batch
    from forerun.engine.sequence import RunningSequence
    from forerun.engine.worker import Worker

    written(trace, Batch, "_prefill", "piece", lambda served: [s.request.job.id for s in served])
    written(trace, Batch, "_decode", "round", lambda served: [s.request.job.id for s in served])
    written(trace, Worker, "_capture", "capture", lambda is_captured: [] if is_captured else None)
    written(trace, Batch, "admit", "admit", lambda is_admitted: [] if is_admitted else None)
    written(trace, RunningSequence, "store", "store", lambda nothing: [])


def written(trace: TextIO, owner: type, name: str, kind: str, served: Callable[[Any], list[str] | None]) -> None:
    """Wrap a method. served: for whom it worked, of its result; None for nobody: no line."""
    method = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        start_s = time.perf_counter()
        result = method(*args, **named)
        stop_s = time.perf_counter()
        if (requests := served(result)) is not None:
            trace.write(json.dumps({"kind": kind, "start_s": start_s, "stop_s": stop_s, "requests": requests}) + "\n")
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    main()

"""Times of work that runs asynchronously, and a report of many parts that is written after each. Knows nothing of what is measured."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

Times = dict[str, Any]
_CHAIN_SAMPLES = 7


def times(run: Callable[[], Any], *, repeats: int, warm: int) -> Times:
    """Milliseconds until all arrays of `run` are evaluated: {"ms": median, "samples_ms", "first_ms": the first, which compiles}."""
    samples = [seconds(run) * 1e3 for _ in range(warm + repeats)]
    timed = samples[warm:]
    return {"ms": round(statistics.median(timed), 4), "samples_ms": [round(s, 4) for s in timed], "first_ms": round(samples[0], 2)}


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of one run. Its result is released before the next: an array with another reference is not written in place."""
    mx.synchronize()
    start = time.perf_counter()
    mx.eval(run())
    mx.synchronize()
    return time.perf_counter() - start


def operation_us(run: Callable[[int], Any], count: int) -> float:
    """Microseconds of one of `count` operations in one evaluation, the host's round trip shared among them; run(i) makes the i-th."""
    return round(times(lambda: [run(i) for i in range(count)], repeats=_CHAIN_SAMPLES, warm=2)["ms"] * 1e3 / count, 2)


class Report:
    """Results by section and part. A part that fails leaves its traceback, one without time left a note; the file is always complete."""

    def __init__(self, path: Path | None, head: dict[str, Any], limit_s: float) -> None:
        self._path, self._start, self._limit_s = path, time.perf_counter(), limit_s
        self.result: dict[str, Any] = head | {"sections": {}, "seconds": {}}

    def part(self, section: str, name: str, measure: Callable[[], Any]) -> Any:
        """The result of `measure`, stored under its name; None if it failed or was skipped."""
        value, entry, start = None, None, time.perf_counter()
        if start - self._start > self._limit_s:
            entry = {"left_out": f"more than {self._limit_s:.0f} s had passed"}
        else:
            try:
                value = entry = measure()
            except Exception:  # noqa: BLE001 - that a part fails is a result, and the others are still wanted
                entry = {"failed": traceback.format_exc()}
        spent_s = time.perf_counter() - start
        self.result["sections"].setdefault(section, {})[name] = entry
        self.result["seconds"][f"{section}/{name}"] = round(spent_s, 2)
        self.write()
        print(f"{section}/{name}: {short(entry)}  [{spent_s:.1f} s]", flush=True)
        return value

    def write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self.result, indent=1) + "\n")

    def find(self, section: str, *names: str) -> float | None:
        """A number of a part, if it was measured."""
        value: Any = self.result["sections"].get(section, {})
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, int | float) else None


def short(value: Any) -> str:
    """A value as one line: of times the median, of a failure its last line."""
    if not isinstance(value, dict):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if "failed" in value:
        return "FAILED " + value["failed"].strip().splitlines()[-1][:300]
    if "samples_ms" in value:
        return f"{value['ms']:.3f} ms"
    return ", ".join(f"{name} {short(item)}" for name, item in value.items() if not name.startswith("samples"))

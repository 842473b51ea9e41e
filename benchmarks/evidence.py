"""The evidence in every result file, and the comparison of arms. Not a benchmark."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
THERMAL = {"state": None, "reason": "this platform gives no thermal reading"}


def evidence(*, kernels: str, model_digest: str, numerics: str, config: dict[str, Any]) -> dict[str, Any]:
    """Where, when and on what a result was obtained. kernels: `Arithmetic.kernels` of the process that computed."""
    import mlx.core as mx

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "num_cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "device": str(mx.default_device()),
        },
        "mlx": version("mlx"),
        "kernels": kernels,
        "model": {"name": "demo-model", "digest": model_digest, "quantisation": "none (bfloat16 weights, computed in float32)"},
        "numerics": numerics,
        "config": config,
        "thermal": THERMAL,
    }


def model_of(folder: Path) -> dict[str, Any]:
    """A checkpoint with its digest, which is cached if a server of this machine has loaded it; otherwise null."""
    from forerun.models.checkpoint import Folder
    from forerun.models.digest import remembered, signature

    found = Folder.find(folder)
    quantisation = found.config.get("quantization", "none")
    return {"name": folder.name, "digest": remembered(signature(found.files)) or None, "quantisation": quantisation}


def interleaved(arms: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Raw samples of each arm; every round runs all arms once, in an order that changes from round to round."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(arms), len(arms)):
            samples[name].append(arms[name]())
    return samples


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> dict[str, float]:
    """Median of the pairwise ratios, with a 90 % bootstrap interval."""
    ratios, rng = [a / b for a, b in zip(top, bottom, strict=True)], random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {"median": statistics.median(ratios), "low": medians[100], "high": medians[1899]}


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result file, if a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {path}")


def _commit() -> str:
    """The commit of the checkout; for a copy without one, from a file COMMIT next to `src`."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    named = ROOT / "COMMIT"
    return named.read_text().strip() if named.exists() else "unknown: no git checkout and no file COMMIT"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())

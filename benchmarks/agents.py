"""What do several agents get at once on two CPU cores, on the bundled model? All as servers over HTTP, interleaved.

    taskset -c 0,1 python benchmarks/agents.py [--llama-server PATH --gguf-py PATH] [--counts 1 2 4 8] [--repeats 3] [--samplings ...]
                                               [--limit-s 300] [--dry-run] [--out FILE]

Arms: forerun with and without drafts; mlx-lm's server, which batches by default, in float32 on a system OpenBLAS; llama.cpp's server with
eight slots, float32 and bfloat16 weights (llama-server, gguf-py: as in against_llama_cpp.py). An arm that cannot be had is left out, with
the reason. Requests of 700 + 128 tokens are sent at the same moment: no two prompts share a beginning, end tokens are banned. Client's
clock; the client shares the processors. After --limit-s no further repeat is begun; an arm that does not answer ends the run.

decode_tok_per_s: of decoding alone. From the moment the last request has its first token to the moment the first has its last one, all
requests decode. The tokens that arrive in that time, over it. A piece counts as the tokens that its text has, by the tokenizer, scaled so
that an answer has 128. null if there is no such time.
all_tok_per_s: all answers' tokens, over the time from sending to the last token of the last. last_s: that time. ttft_s: median of the
requests' times to the first token.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes.util import find_library
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, model_of, write
from forerun.models.load import DEMO_MODEL
from forerun.text.tokenizer import Tokenizer
from llama.prompts import prompts
from llama.streaming import ANSWER_TOKENS, GREEDY, Server, Stream, forerun, llama, mlx_lm

CONTEXT = 700
PIECE_LIMIT_S = 60.0
SAMPLINGS = {"greedy": GREEDY, "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.0}}
FIELDS = ("decode_tok_per_s", "all_tok_per_s", "last_s", "ttft_s")
# At the largest number of requests: at least this times as fast in decoding alone.
OVER_ONE, OVER_MLX_LM, OVER_LLAMA, DRAFTS_OVER_PLAIN = 2.2, 1.0, 0.8, 0.97


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--gguf-py", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samplings", nargs="+", choices=SAMPLINGS, default=list(SAMPLINGS))
    parser.add_argument("--limit-s", type=float, default=300)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if options.dry_run:
        print(f"would run {options.counts} requests at once, {options.repeats} times per arm, on processors {cores}")
        return
    result = measure(options, len(cores))
    print(table(result["medians"]), *(f"{word(holds)}: {what}" for what, holds in result["holds"].items()), sep="\n")
    config = {name: getattr(options, name) for name in ("counts", "repeats", "samplings")}
    write(options.out, head(config | {"cores": len(cores), "context": CONTEXT, "answer_tokens": ANSWER_TOKENS}) | result)


def head(config: dict[str, Any]) -> dict[str, Any]:
    from forerun.kernels.arithmetic import here

    arithmetic, digest = here(), model_of(DEMO_MODEL)["digest"]
    return evidence(kernels=arithmetic.kernels, model_digest=digest, numerics=arithmetic.numerics.name, config=config)


def measure(options: argparse.Namespace, num_cores: int) -> dict[str, Any]:
    """Raw samples of all arms, medians, and whether the targets are met."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(TemporaryDirectory()))
        servers, left_out = arms_of(options, folder, num_cores)
        arms = {arm.name: cleanup.enter_context(arm) for arm in servers}
        samples = list(sampled(arms, options))
    medians = medians_of(samples)
    return {"holds": holds(medians), "medians": medians, "left_out": left_out, "samples": samples}


def arms_of(options: argparse.Namespace, folder: Path, num_cores: int) -> tuple[list[Server], dict[str, str]]:
    """The servers, not yet started, and why others are left out."""
    arms, left_out = [forerun("forerun plain", folder, depth="0"), forerun("forerun drafts", folder, depth="auto")], {}
    blas = find_library("openblas")
    if find_spec("mlx_lm") and blas:
        from against_mlx_lm import in_float32

        in_float32(folder / "float32")
        arms.append(mlx_lm("mlx-lm", folder / "float32", folder, blas=blas))
    else:
        left_out["mlx-lm"] = "no OpenBLAS of the system" if find_spec("mlx_lm") else "not installed"
    if options.llama_server and options.gguf_py:
        make = partial(llama, folder=folder, threads=num_cores, wait_policy="default", slots=max(options.counts))
        arms += [make(f"llama {kind}", options.llama_server, options.gguf_py, kind) for kind in ("f32", "bf16")]
    else:
        left_out["llama"] = "no --llama-server and --gguf-py"
    return arms, left_out


def sampled(arms: dict[str, Server], options: argparse.Namespace) -> Any:
    """Samples of all arms, one repeat after the other; the first warms up. Within a repeat no two requests of an arm share a prompt."""
    end_s, order = time.monotonic() + options.limit_s, random.Random(0)
    longest_s, num = 0.0, (options.repeats + 1) * sum(options.counts) * len(options.samplings)
    texts = [tokens[:CONTEXT] for tokens in prompts(CONTEXT, num)]
    for repeat in range(options.repeats + 1):
        begun_s = time.monotonic()
        if repeat > 1 and begun_s + longest_s > end_s:
            print(f"stopped before repeat {repeat}: the time is over", flush=True)
            return
        for sampling in options.samplings:
            for count in options.counts:
                asked, texts = texts[:count], texts[count:]
                for name in order.sample(list(arms), len(arms)):
                    sample = together(arms[name], asked, SAMPLINGS[sampling])
                    if repeat:
                        yield {"arm": name, "count": count, "sampling": sampling, "repeat": repeat, **sample}
        longest_s = time.monotonic() - begun_s


def together(server: Server, asked: list[list[int]], sampling: dict[str, Any]) -> dict[str, Any]:
    """The times of requests that are sent at the same moment."""
    barrier = threading.Barrier(len(asked), timeout=PIECE_LIMIT_S)

    def ask(tokens: list[int]) -> Stream:
        barrier.wait()
        return server.stream(tokens, sampling, limit_s=PIECE_LIMIT_S)

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(ask, asked))
    return times_of(answers)


def times_of(answers: list[Stream]) -> dict[str, Any]:
    begun_s, ended_s = min(a.begun_s for a in answers), max(a.last_s for a in answers)
    num_tokens = [a.num_tokens for a in answers]
    if num_tokens != [ANSWER_TOKENS] * len(answers):
        raise RuntimeError(f"answers of {num_tokens} tokens, not of {ANSWER_TOKENS}")
    start_s, stop_s = max(a.first_s for a in answers), min(a.last_s for a in answers)
    decoded = sum(num_between(a, start_s, stop_s) for a in answers)
    return {
        "decode_tok_per_s": decoded / (stop_s - start_s) if stop_s > start_s else None,
        "decode_s": stop_s - start_s,
        "all_tok_per_s": sum(num_tokens) / (ended_s - begun_s),
        "last_s": ended_s - begun_s,
        "ttft_s": statistics.median(a.first_s - a.begun_s for a in answers),
        "rows_per_round": [a.report.get("rows_per_round") for a in answers],
    }


def num_between(answer: Stream, start_s: float, stop_s: float) -> float:
    """About how many tokens of the answer arrived after start_s, up to stop_s."""
    tokenizer = Tokenizer.load(DEMO_MODEL)
    lengths = [
        len(tokenizer.encode("".join(text for at_s, text in answer.pieces if at_s <= end_s), tenant=""))
        for end_s in (start_s, stop_s, answer.last_s)
    ]
    return answer.num_tokens * (lengths[1] - lengths[0]) / lengths[2]


def medians_of(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each arm, number of requests and sampling."""
    rows: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for sample in samples:
        rows.setdefault((sample["arm"], sample["count"], sample["sampling"]), []).append(sample)
    return [
        {"arm": arm, "count": count, "sampling": sampling, **{field: median(row[field] for row in own) for field in FIELDS}}
        for (arm, count, sampling), own in rows.items()
    ]


def median(values: Any) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def holds(medians: list[dict[str, Any]]) -> dict[str, bool | None]:
    """The targets; None where an arm or a number of requests is missing."""
    rate = {(row["arm"], row["count"], row["sampling"]): row["decode_tok_per_s"] for row in medians}
    counts, found = sorted({row["count"] for row in medians}), dict[str, bool | None]()
    for sampling in dict.fromkeys(row["sampling"] for row in medians):

        def at(arm: str, count: int, sampling: str = sampling) -> float | None:
            rates = [r for (name, n, s), r in rate.items() if name.startswith(arm) and (n, s) == (count, sampling) and r is not None]
            return max(rates, default=None)

        most, own = counts[-1], at("forerun drafts", counts[-1])
        found[f"{sampling}: {most} at once decode {OVER_ONE} x as fast as one"] = is_least(own, at("forerun drafts", 1), OVER_ONE)
        found[f"{sampling}: {most} at once decode as fast as mlx-lm's"] = is_least(own, at("mlx-lm", most), OVER_MLX_LM)
        found[f"{sampling}: {most} at once decode {OVER_LLAMA} x as fast as llama.cpp's"] = is_least(own, at("llama", most), OVER_LLAMA)
        for count in counts:
            drafts, plain = at("forerun drafts", count), at("forerun plain", count)
            found[f"{sampling}: drafts decode {DRAFTS_OVER_PLAIN} x as fast as none, {count} at once"] = is_least(
                drafts, plain, DRAFTS_OVER_PLAIN
            )
    return found


def is_least(own: float | None, other: float | None, factor: float) -> bool | None:
    return None if own is None or other is None else own >= factor * other


def word(holds: bool | None) -> str:
    return {True: "holds", False: "FAILS", None: "not measured"}[holds]


def table(medians: list[dict[str, Any]]) -> str:
    """The medians as a Markdown table."""
    titles = ("arm", "sampling", "at once", *FIELDS)
    lines = [(row["arm"], row["sampling"], str(row["count"]), *(shown(row[field]) for field in FIELDS)) for row in medians]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, ("---",) * len(titles), *sorted(lines)))


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()

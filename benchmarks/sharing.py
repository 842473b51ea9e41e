"""What do sub-agents with the same beginning compute twice, and what does a long prompt do to agents that decode?

    taskset -c 0,1 python benchmarks/sharing.py [--repeats 3] [--beginning 8000] [--prompt 24000] [--dry-run] [--out FILE]

Same beginning: four requests are sent at the same moment. Computed tokens over those of the beginning and the four rests, by the responses'
reports; answers compared with the bypass answers. Long prompt: it is sent while three agents decode; its time to the first token over that
of another such prompt alone; seconds between two pieces of the three streams meanwhile. A wrapper around the server writes what its MLX
thread does (benchmarks/traced/): between two rounds of a request there is at most one piece of a prompt, a quarter of a chunk's layers, and
one unit captured for the disk. Bundled model, greedy; client's clock; the client shares the processors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, model_of, write
from forerun.models.load import DEMO_MODEL
from llama.prompts import prompts
from llama.streaming import Server, Stream, Watch
from traced.gaps import spread, summary

NUM_SHARING, NUM_DECODING = 4, 3
REST_TOKENS, DECODING_PROMPT = 200, 700
SHARING_ANSWER, DECODING_ANSWER, LONG_ANSWER = 32, 8000, 8
LIMIT_S = 120.0
MAX_COMPUTED, MAX_PROMPT_RATIO = 1.1, 1.25
PROGRAM = Path(__file__).parent / "traced" / "serve.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beginning", type=int, default=8000)
    parser.add_argument("--prompt", type=int, default=24_000)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would share {options.beginning} tokens, and prefill {options.prompt} beside three streams, {options.repeats} times")
        return
    result = measure(options)
    print(json.dumps({name: value for name, value in result.items() if name != "samples"}, indent=1))
    config = {name: getattr(options, name) for name in ("repeats", "beginning", "prompt")}
    write(options.out, head(config) | result)


def head(config: dict[str, Any]) -> dict[str, Any]:
    from forerun.kernels.arithmetic import here

    arithmetic, digest = here(), model_of(DEMO_MODEL)["digest"]
    return evidence(kernels=arithmetic.kernels, model_digest=digest, numerics=arithmetic.numerics.name, config=config)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both measurements, what the trace shows, and whether the targets are met."""
    with TemporaryDirectory() as name:
        trace, own = Path(name) / "trace.jsonl", Path(name) / "server"
        command = [sys.executable, str(PROGRAM), str(trace), "--bank-dir", str(own / "bank"), "--request-log", str(own / "log.jsonl")]
        with Server("forerun", "forerun", command, own) as server:
            shared = [share(server, tokens, number) for number, tokens in enumerate(prompts(options.beginning, options.repeats))]
            beside, alone = long_prompts(server, options)
        traced = summary([json.loads(line) for line in trace.read_text().splitlines()])
    computed = statistics.median(each["computed_over_needed"] for each in shared)
    ratio = statistics.median(a["ttft_s"] / b["ttft_s"] for a, b in zip(beside, alone, strict=True))
    gaps = spread([gap for each in beside for gap in each["gaps_s"]])
    return {
        "computed_over_needed": computed,
        "equal_to_bypass": all(each["equal_to_bypass"] for each in shared),
        "prompt_beside_over_alone": ratio,
        "gap_s": gaps,
        "trace": traced,
        "holds": {
            f"sub-agents compute {MAX_COMPUTED} x what is needed at most": max(e["computed_over_needed"] for e in shared) <= MAX_COMPUTED,
            "their answers are the bypass answers": all(each["equal_to_bypass"] for each in shared),
            f"a long prompt takes {MAX_PROMPT_RATIO} x its time alone at most": ratio <= MAX_PROMPT_RATIO,
            "at most one piece of a prompt between two rounds": traced["most_in_a_gap"]["piece"] <= 1,
            "at most one captured unit between two rounds": traced["most_in_a_gap"]["capture"] <= 1,
        },
        "samples": {"shared": shared, "beside": beside, "alone": alone},
    }


def share(server: Server, beginning: list[int], number: int) -> dict[str, Any]:
    """Four requests at the same moment, then their bypass answers."""
    asked = [[*beginning, *rest[:REST_TOKENS]] for rest in prompts(REST_TOKENS * 2, NUM_SHARING)]
    barrier = threading.Barrier(NUM_SHARING, timeout=LIMIT_S)

    def ask(tokens: list[int]) -> Stream:
        barrier.wait()
        return server.stream(tokens, num=SHARING_ANSWER, limit_s=LIMIT_S)

    with ThreadPoolExecutor(NUM_SHARING) as pool:
        answers = list(pool.map(ask, asked))
    bypassed = [server.stream(tokens, num=SHARING_ANSWER, limit_s=LIMIT_S, forerun={"bank": "bypass"}) for tokens in asked]
    needed = num_common(asked) + sum(len(tokens) - num_common(asked) for tokens in asked)
    return {
        "number": number,
        "needed_tokens": needed,
        "computed_tokens": [a.report["computed_tokens"] for a in answers],
        "computed_over_needed": sum(a.report["computed_tokens"] for a in answers) / needed,
        "forked": sum(bool(a.report["forked_from"]) for a in answers),
        "equal_to_bypass": [a.text for a in answers] == [b.text for b in bypassed],
    }


def num_common(asked: Sequence[list[int]]) -> int:
    """How many tokens all prompts begin with."""
    return next(i for i, tokens in enumerate(zip(*asked, strict=False)) if len(set(tokens)) > 1)


def long_prompts(server: Server, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A long prompt beside three streams, and another alone, alternating. The first of each warms up."""
    beside, alone = list[dict[str, Any]](), list[dict[str, Any]]()
    texts, short = prompts(options.prompt, 2 * (options.repeats + 1)), prompts(DECODING_PROMPT, NUM_DECODING * (options.repeats + 1))
    for repeat in range(options.repeats + 1):
        decoding, short = short[:NUM_DECODING], short[NUM_DECODING:]
        with ThreadPoolExecutor(NUM_DECODING) as pool:
            watches = [Watch() for _ in decoding]
            asked = zip(decoding, watches, strict=True)
            streams = [pool.submit(server.stream, tokens, num=DECODING_ANSWER, limit_s=LIMIT_S, watch=watch) for tokens, watch in asked]
            try:
                answer = beside_streams(server, texts[2 * repeat], watches)
            finally:
                for watch in watches:
                    watch.is_over.set()
            found = during(answer, [stream.result(LIMIT_S) for stream in streams])
        by_itself = server.stream(texts[2 * repeat + 1], num=LONG_ANSWER, limit_s=LIMIT_S)
        if repeat:
            beside.append(found)
            alone.append({"ttft_s": by_itself.first_s - by_itself.begun_s})
    return beside, alone


def beside_streams(server: Server, tokens: list[int], watches: Sequence[Watch]) -> Stream:
    """The long prompt's answer; it is sent once all the streams have begun. Raises RuntimeError: they do not."""
    if not all(watch.has_begun.wait(LIMIT_S) for watch in watches):
        raise RuntimeError("a stream did not begin")
    time.sleep(0.5)
    return server.stream(tokens, num=LONG_ANSWER, limit_s=LIMIT_S)


def during(prompt: Stream, streams: Sequence[Stream]) -> dict[str, Any]:
    """The long prompt's time, and the gaps between the streams' pieces meanwhile. Raises RuntimeError: one did not decode all the time."""
    gaps = []
    for stream in streams:
        if not stream.first_s < prompt.begun_s < prompt.first_s <= stream.last_s:
            raise RuntimeError("a stream did not decode while the long prompt was prefilled: its answer is too short for this machine")
        times = [at_s for at_s, _ in stream.pieces]
        gaps += [b - a for a, b in itertools.pairwise(times) if prompt.begun_s <= b and a <= prompt.first_s]
    return {"ttft_s": prompt.first_s - prompt.begun_s, "prompt_tokens": prompt.report["computed_tokens"], "gaps_s": gaps}


if __name__ == "__main__":
    main()

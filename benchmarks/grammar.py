"""What do grammars cost to compile and to follow, without a model? And are hostile schemas refused or served within a second?

    python benchmarks/grammar.py [--model FOLDER] [--repeats 5] [--dry-run] [--out FILE]

compile: of each list of tools that recorded clients sent, in the model's call format and as JSON calls; the first time, and when an agent
sends it again. follow: drawn answers under a schema, token by token: the mask, and accepting a token; a bounded length apart, since its
masks cost more. hostile: compile and the first 20 masks of each schema, strict and not. Rendering the prompt is not included. With
--model: that checkpoint's tokenizer; its size decides what a mask costs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence import ROOT, evidence, write

sys.path.insert(0, str(ROOT))

from tests.grammar import recorded
from tests.grammar.answers import FOLDER, PROMPTER, job_of, output
from tests.grammar.call_answers import FORMATS
from tests.grammar.schemas import closed
from tests.grammar.test_hostile import EITHER, NUM_MASKS, REFUSED

from forerun.errors import BadRequestError
from forerun.grammar.compile import Grammars
from forerun.text.answer_parser import AnswerFormat
from forerun.text.calls.tools import Tools
from forerun.text.reasoning import THINK
from forerun.text.tokenizer import Tokenizer
from forerun.values import CallRule, Chat, OutputFormat

LIMIT_S = 1.0
CALL_FORMATS = ("qwen", "hermes")
CHAT = Chat(({"role": "user", "content": "hi"},), (), {"enable_thinking": False})
PROMPT = PROMPTER.encode(CHAT, tenant="")
TEXTS = {"type": "array", "items": closed(title={"type": "string"}, n={"type": "integer"}, done={"type": "boolean"}), "minItems": 20}
BOUNDED = {"type": "array", "items": closed(title={"type": "string", "maxLength": 200}, n={"type": "integer"}), "minItems": 20}


def milliseconds(started_s: float) -> float:
    return 1e3 * (time.perf_counter() - started_s)


def compile_ms(grammars: Grammars, name: str, tools: Any) -> float:
    """Of the calls that an answer may make."""
    declared = Tools(tools)
    prompt = replace(PROMPT, answer_format=AnswerFormat(THINK, FORMATS[name]), tools=declared)
    started_s = time.perf_counter()
    grammars.compile(job_of(CHAT, calls=CallRule()), prompt)
    return milliseconds(started_s)


def compiled(tokenizer: Tokenizer, size: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each list of tools and format."""
    for name in CALL_FORMATS:
        for tools in recorded.tool_lists():
            first, again = [], []
            for _ in range(repeats):
                grammars = Grammars(tokenizer, size)
                grammars.load()
                first.append(compile_ms(grammars, name, tools))
                again.append(compile_ms(grammars, name, tools))
            yield {"format": name, "tools": len(tools), "first_ms": first, "again_ms": again}


def followed(grammars: Grammars, schema: Any, seed: int) -> tuple[list[float], list[float]]:
    """Microseconds of each mask, and of accepting each token, of a drawn answer of at most 400 tokens."""
    grammar = grammars.compile(job_of(CHAT, output=output(schema)), PROMPT)
    assert grammar
    matcher, rng, masks, accepts = grammar.matcher(), random.Random(seed), list[float](), list[float]()
    for _ in range(400):
        started_s = time.perf_counter()
        mask = matcher.allowed()
        masks.append(1e3 * milliseconds(started_s))
        assert mask is not None
        token = int(rng.choice(mask.nonzero()[0]))
        started_s = time.perf_counter()
        matcher.accept(token)
        accepts.append(1e3 * milliseconds(started_s))
        if token in grammars.vocabulary.stop_ids:
            break
    return masks, accepts


def percentiles(samples: list[float]) -> dict[str, float]:
    ranked = sorted(samples)
    at = {name: ranked[min(len(ranked) - 1, int(frac * len(ranked)))] for name, frac in (("p50", 0.5), ("p99", 0.99))}
    return {"mean": statistics.mean(ranked), **at, "worst": ranked[-1], "num": len(ranked)}


def hostile(grammars: Grammars) -> Iterator[dict[str, Any]]:
    """A row for each schema: seconds, and how it was answered."""
    for name, schema in {**{name: each for name, (each, _) in REFUSED.items()}, **EITHER}.items():
        for is_strict in (True, False):
            held = output(schema, is_strict=is_strict)
            started_s = time.perf_counter()
            answer = _answer(grammars, held)
            yield {"schema": name, "is_strict": is_strict, "s": milliseconds(started_s) / 1e3, "answer": answer}


def _answer(grammars: Grammars, held: OutputFormat) -> str:
    try:
        grammar = grammars.compile(job_of(CHAT, output=held), PROMPT)
        assert grammar
        matcher = grammar.matcher()
        for _ in range(NUM_MASKS):
            mask = matcher.allowed()
            assert mask is not None
            matcher.accept(int(mask.nonzero()[0][0]))
    except BadRequestError as error:
        return f"400: {error}"
    return "compiled" + (f", without {', '.join(grammar.unenforced)}" if grammar.unenforced else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(
            f"would compile {len(recorded.tool_lists())} lists of tools {options.repeats} times, and {len(REFUSED) + len(EITHER)} schemas"
        )
        return
    tokenizer = Tokenizer.load(options.model)
    started_s = time.perf_counter()
    grammars = Grammars(tokenizer, tokenizer.size)
    grammars.load()
    load_s = milliseconds(started_s) / 1e3
    lists = list(compiled(tokenizer, tokenizer.size, options.repeats if options.model == FOLDER else 1))
    times = {key: percentiles([ms for row in lists for ms in row[key]]) for key in ("first_ms", "again_ms")}
    follow = {}
    for name, schema in (("schema", TEXTS), ("bounded lengths", BOUNDED)):
        samples = [followed(grammars, schema, seed) for seed in range(10)]
        follow[name] = {
            "mask_us": percentiles([us for masks, _ in samples for us in masks]),
            "accept_us": percentiles([us for _, accepts in samples for us in accepts]),
        }
    schemas = list(hostile(grammars))
    worst = max(row["s"] for row in schemas)
    print(f"vocabulary {tokenizer.size:,}: built in {load_s:.2f} s")
    print("compile", times, "\nfollow", follow, f"\nhostile: {len(schemas)} runs, worst {worst:.2f} s")
    head = evidence(
        kernels="none", model_digest=tokenizer.digest, numerics="none", config={"repeats": options.repeats, "vocab": tokenizer.size}
    )
    result = {"load_s": load_s, "compile_ms": times, "lists": lists, "follow": follow, "hostile": schemas}
    write(options.out, head | result | {"limit_s": LIMIT_S, "holds": worst <= LIMIT_S})


if __name__ == "__main__":
    main()

"""What does a grammar cost a token, and how often are drafts accepted under one?

    python benchmarks/grammar_cost.py [--repeats 12] [--answer 256] [--dry-run] [--out FILE]

Plain decoding of the bundled model with and without a grammar, round by round in turns in one process; what the grammar determines is not
drafted, so that both have one token a round. The grammars: JSON of a schema whose strings are unbounded, the same with `maxLength`, and
free text in which a tool may be called. Then drafts of depth 2: of those made, how many are accepted, with the grammar and without. At last
a vocabulary of 248,320 tokens, without a model: the time that a row takes from the matcher to the masked logits.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from forerun.bench.subject import BenchModel, load
from forerun.config import Config

LARGE_VOCAB = 248_320


def file_schema(**limits: int) -> dict[str, Any]:
    """A list of 400 files: more than an answer here has tokens for."""
    text = {"type": "string", **limits}
    fields = {"path": text, "line": {"type": "integer"}, "text": text, "is_open": {"type": "boolean"}}
    item = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 400}


TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
SCHEMAS = {"schema": file_schema(), "schema with maxLength": file_schema(maxLength=200)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--answer", type=int, default=256)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would compare {options.repeats} answers of {options.answer} tokens with each of {[*SCHEMAS, 'tools']} to answers without")
        return
    measure(load(Config.model_validate({})), options)


def measure(subject: BenchModel, options: argparse.Namespace) -> None:
    from evidence import evidence, ratio_interval, write

    cost, acceptance = {}, dict[str, dict[str, float]]()
    for name in (*SCHEMAS, "tools"):
        pairs = [pair(subject, name, options.answer, seed) for seed in range(options.repeats)]
        cost[name] = ratio_interval([p[0] for p in pairs], [p[1] for p in pairs]) | {"seconds_per_token": median(p[0] for p in pairs)}
        acceptance[name] = {arm: accepted_frac(subject, name, options, is_held=arm == "with") for arm in ("with", "without")}
    config = {"repeats": options.repeats, "answer": options.answer}
    head = evidence(kernels=subject.kernels, model_digest=subject.digest, numerics=subject.family.numerics.name, config=config)
    result = {"time_per_token_to_none": cost, "accepted_of_drafted": acceptance, "large_vocabulary": large_vocabulary(subject)}
    write(options.out, head | result)
    print(json.dumps(result, indent=1))


def pair(subject: BenchModel, name: str, num: int, seed: int) -> tuple[float, float]:
    """Median seconds of a round with the grammar and without."""
    from forerun.decode.generate import decode

    answers = [answer(subject, name, num, 0, seed, is_held=is_held) for is_held in (True, False)]
    for each in answers:
        each.rounds.forced = lambda limit: []
        each.begin()
    seconds: list[list[float]] = [[], []]
    order = random.Random(seed)
    while all(each.finish is None for each in answers):
        for i in order.sample((0, 1), 2):
            start_s = time.perf_counter()
            decode([answers[i]])
            seconds[i].append(time.perf_counter() - start_s)
    return median(seconds[0]), median(seconds[1])


def accepted_frac(subject: BenchModel, name: str, options: argparse.Namespace, *, is_held: bool) -> float:
    """Of the drafts at depth 2 that the head made, the share that was accepted."""
    drafted = accepted = 0
    for seed in range(options.repeats):
        own = answer(subject, name, options.answer, 2, seed, is_held=is_held)
        list(own)
        drafted, accepted = drafted + sum(own.draft_stats.drafted), accepted + sum(own.draft_stats.accepted)
    return accepted / drafted


def answer(subject: BenchModel, name: str, num: int, depth: int, seed: int, *, is_held: bool) -> Any:
    """An answer to the prompt of that grammar that has not begun, held by it or free."""
    from forerun.decode.compiled import StepTable
    from forerun.decode.depth import policy_for
    from forerun.decode.generate import Generation
    from forerun.decode.prefill import prefill
    from forerun.grammar.compile import Grammars
    from forerun.state.conversion import materialise
    from forerun.state.layout import Contiguous
    from forerun.state.store import Arena
    from forerun.text.answer import Answer
    from forerun.values import GREEDY

    if not _SHARED:
        _SHARED["steps"] = StepTable(subject.family, eager_reason="")
        _SHARED["grammars"] = Grammars(subject.tokenizer, subject.family.vocab)
    job = job_of(name, seed)
    prompt = subject.prompter.encode(job.prompt, tenant="")
    grammar = _SHARED["grammars"].compile(job, prompt) if is_held else None
    cache = materialise(Arena(subject.family.spec), [], None, Contiguous(), len(prompt.tokens) + num)
    for _ in prefill(subject.family, cache, list(prompt.tokens), []):
        pass
    return Generation(
        _SHARED["steps"],
        cache,
        prompt.tokens,
        replace(GREEDY, temperature=1.0, top_p=0.95, top_k=20, seed=seed),
        Answer(subject.tokenizer, (), ""),
        max_tokens=num,
        stop_ids=subject.tokenizer.stop_ids if name == "tools" else frozenset(),  # the schemas' answers are longer than the limit
        policy=policy_for(depth),
        matcher=grammar.matcher() if grammar else None,
    )


_SHARED: dict[str, Any] = {}


def job_of(name: str, seed: int) -> Any:
    """A request for a list of files, or with a tool."""
    from forerun.values import NEUTRAL, Chat, Job, OutputFormat

    output = OutputFormat("json_schema", json.dumps(SCHEMAS[name]), True, "response_format") if name in SCHEMAS else None
    messages = ({"role": "user", "content": f"List the files of project {seed} as JSON, with a line of each."},)
    chat = Chat(messages, (TOOL,) if name == "tools" else (), {"enable_thinking": False})
    return Job("benchmark", chat, NEUTRAL, None, (), None, "", "bypass", output=output)


def large_vocabulary(subject: BenchModel) -> dict[str, float]:
    """Microseconds of a row under the schemas, over a vocabulary with made-up tokens beside the real ones."""
    import mlx.core as mx
    import numpy as np

    from forerun.grammar.compile import Grammars
    from forerun.models.load import DEMO_MODEL
    from forerun.text.tokenizer import Tokenizer

    with TemporaryDirectory() as folder:
        for file in DEMO_MODEL.iterdir():
            if file.is_file() and file.suffix == ".json" and file.name != "tokenizer.json":
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        (Path(folder) / "tokenizer.json").write_text(json.dumps(enlarged(json.loads((DEMO_MODEL / "tokenizer.json").read_text()))))
        start_s = time.perf_counter()
        grammars = Grammars(Tokenizer.load(Path(folder)), LARGE_VOCAB)
        grammars.load()
        found = {"seconds_to_load": time.perf_counter() - start_s}
    logits = mx.random.normal((1, LARGE_VOCAB))
    for name in SCHEMAS:
        job, times = job_of(name, 0), []
        grammar = grammars.compile(job, subject.prompter.encode(job.prompt, tenant=""))
        assert grammar
        matcher, rng = grammar.matcher(), np.random.default_rng(0)
        for _ in range(400):
            start_s = time.perf_counter()
            allowed = matcher.allowed()
            assert allowed is not None
            mx.eval(mx.where(mx.array(allowed[None]), logits, -mx.inf))
            times.append((time.perf_counter() - start_s) * 1e6)
            matcher.accept(int(rng.choice(np.flatnonzero(allowed))))
        found |= {f"{name}, median": median(times), f"{name}, mean": sum(times) / len(times), f"{name}, p99": sorted(times)[396]}
    return found


def enlarged(definition: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer's definition with tokens that no merge makes, of letters as the real ones."""
    vocabulary, rng = definition["model"]["vocab"], random.Random(0)
    parts = [each for each in vocabulary if each.isascii() and 1 < len(each) < 7]
    taken = {*vocabulary, *(token["content"] for token in definition["added_tokens"])}
    last = max(*vocabulary.values(), *(token["id"] for token in definition["added_tokens"]))
    while last < LARGE_VOCAB - 1:
        text = "".join(rng.choices(parts, k=rng.choice((2, 2, 3))))
        if text not in taken:
            taken.add(text)
            last += 1
            vocabulary[text] = last
    return definition


if __name__ == "__main__":
    main()

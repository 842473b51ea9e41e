"""What does a step of decoding cost besides the model? The whole engine around a family that computes almost nothing.

    python benchmarks/step_overhead.py [--tokens 400] [--repeats 5] [--dry-run] [--out FILE]

Requests go through queue, worker, rounds, sampling, detokeniser and events, as in a server; the model's passes only look up tokens.
A step is a pass, of verification or of drafting. The cost of its compiled passes and look-ups is included. Vocabularies: the bundled
model's, and that of the large Qwen3.5 models, whose distributions take ten times the arithmetic. With and without requested logprobs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

import mlx.core as mx  # noqa: E402

from evidence import evidence, write  # noqa: E402
from forerun.bank.bank import Bank  # noqa: E402
from forerun.bench.decode import SAMPLINGS  # noqa: E402
from forerun.decode.compiled import StepTable  # noqa: E402
from forerun.decode.depth import DepthPolicy  # noqa: E402
from forerun.decode.warm_up import warm_up  # noqa: E402
from forerun.engine.loading import memory_bytes  # noqa: E402
from forerun.engine.local import LocalEngine  # noqa: E402
from forerun.engine.model import Model  # noqa: E402
from forerun.engine.worker import Worker  # noqa: E402
from forerun.kernels import arithmetic  # noqa: E402
from forerun.models.load import DEMO_MODEL  # noqa: E402
from forerun.state.cache import View  # noqa: E402
from forerun.state.layout import Contiguous, Limits  # noqa: E402
from forerun.state.record import Identity  # noqa: E402
from forerun.state.spec import ArraySpec, AttentionSpec, StateSpec  # noqa: E402
from forerun.text.prompt import Prompter  # noqa: E402
from forerun.text.template import Template  # noqa: E402
from forerun.text.tokenizer import Tokenizer  # noqa: E402
from forerun.values import Done, Job, LogprobsRequest, ModelInfo, TokenPrompt  # noqa: E402

HERE = arithmetic.here()
CONTEXT, PROMPT = 4096, tuple(range(100, 400))
QWEN_VOCAB = 248_320
DEPTHS = (0, 1, 3)
WAYS = [
    *((sampling, None) for sampling in SAMPLINGS),
    ("greedy", 0),
    ("greedy", 20),
]  # with the number of requested likeliest tokens
LIMIT_MS = 1.0


class Still:
    """Predicts a function of each token alone; so does the draft head. Stores rows of one narrow layer, and does no arithmetic."""

    name, numerics, context_tokens = "still", HERE.numerics, CONTEXT
    linear_shapes: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, vocab: int) -> None:
        rows = AttentionSpec(1, 8, "float32")
        self.vocab, self.spec = vocab, StateSpec((rows,), (rows,), ArraySpec("hidden", (8,), "float32"))

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        view.begin(spans)
        return self._hidden(tokens)

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        yield self.forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        view.begin_draft(spans)
        return self._hidden(tokens)

    def head(self, hidden: mx.array) -> mx.array:
        following = (hidden[:, :1] * 7 + 11) % 5000
        return mx.where(mx.arange(self.vocab)[None] == following, 30.0, 0.0)

    def _hidden(self, tokens: mx.array) -> mx.array:
        return mx.broadcast_to(tokens[:, None].astype(mx.float32), (tokens.shape[0], 8))


def engine(vocab: int, depth: int) -> LocalEngine:
    """An engine around a still family that always drafts `depth` tokens, all of which are accepted."""

    def load() -> Model:
        steps = StepTable(Still(vocab), eager_reason="")
        warm_up(steps, Contiguous(), depth, lambda doing, done_frac: None)
        identity = Identity("still", "mtp1", "tokenizer", "template", "float32", HERE.numerics.name)
        bank = Bank(steps.family.spec, identity, disk=None, secret=b"secret", ram_limit_bytes=1 << 30)
        prompter = Prompter(Tokenizer.load(DEMO_MODEL), Template.load(DEMO_MODEL))
        return Model(steps, bank, prompter, DepthPolicy((depth,)), Limits(CONTEXT, 64), memory_bytes(), 8, ())

    info = ModelInfo("still", "still", "cpu", HERE.numerics.name, HERE.kernels, CONTEXT, 0, SAMPLINGS["greedy"], demo=False)
    return LocalEngine(info, Worker(load), {}, None, b"")


async def step_ms(running: LocalEngine, sampling: str, num_top: int | None, tokens: int) -> float:
    """Milliseconds a step of one answer, its first token left out."""
    drawn, logprobs = replace(SAMPLINGS[sampling], logit_bias={}), None if num_top is None else LogprobsRequest(num_top, of_prompt=False)
    run = await running.submit(Job("job", TokenPrompt(PROMPT), drawn, tokens, (), None, "", "bypass", logprobs))
    (report,) = [event.report async for event in run if isinstance(event, Done)]
    assert report.compiled_steps == report.steps
    assert report.decode_tok_per_s
    return 1e3 * (tokens - 1) / report.decode_tok_per_s / report.steps


def measure(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each vocabulary, depth and sampling: samples and their median."""
    rows = []
    for vocab in (Tokenizer.load(DEMO_MODEL).size, QWEN_VOCAB):
        for depth in DEPTHS:
            running = engine(vocab, depth)
            for sampling, num_top in WAYS:
                samples = [asyncio.run(step_ms(running, sampling, num_top, tokens)) for _ in range(repeats + 1)][1:]
                what = {"vocab": vocab, "depth": depth, "sampling": sampling, "top_logprobs": num_top}
                rows.append(what | {"step_ms": samples, "median_ms": statistics.median(samples)})
                print(f"vocab {vocab:7,}  depth {depth}  {sampling:8}  top_logprobs {num_top}  {rows[-1]['median_ms']:.2f} ms a step")
            asyncio.run(running.close(5.0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would generate {options.tokens} tokens {options.repeats} times at depths {DEPTHS} under {', '.join(SAMPLINGS)}")
        return
    rows = measure(options.tokens, options.repeats)
    config = {"tokens": options.tokens, "repeats": options.repeats, "prompt_tokens": len(PROMPT)}
    head = evidence(kernels=HERE.kernels, model_digest="none: a family that computes nothing", numerics=HERE.numerics.name, config=config)
    holds = all(row["median_ms"] <= LIMIT_MS for row in rows if row["vocab"] != QWEN_VOCAB and row["top_logprobs"] is None)
    write(options.out, head | {"limit_ms": LIMIT_MS, "holds_for_bundled_vocabulary": holds, "rows": rows})


if __name__ == "__main__":
    main()

"""`forerun bench`: measurements on this machine. Knows settings and the terminal; forerun.bench, which measures, is imported last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.cli.lines import AsJson
from forerun.cli.serve import described, option
from forerun.config import load

if TYPE_CHECKING:
    from forerun.bench.subject import BenchModel

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)
COLUMNS = ("sampling", "context", "plain\ntok/s", "drafting\ntok/s", "ratio", "tokens per\nround", "accepted of drafted", "rounds by depth")


@app.callback()
def bench() -> None:
    """Measure on this machine."""


@app.command()
def decode(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=described("model"), show_default=False)] = None,
    draft_depth: Annotated[str | None, option("draft_depth")] = None,
    context: Annotated[list[int], typer.Option(help="length of the first prompt, in tokens; may be given several times")] = [1000, 4000],  # noqa: B006
    repeats: Annotated[int, typer.Option(min=1, help="number of answers to each of five turns, with and without drafts")] = 3,
    answer_tokens: Annotated[int, typer.Option(min=2, help="longest answer")] = 64,
    as_json: AsJson = False,
) -> None:
    """Compare decoding with and without drafts. Greedy is temperature 0; sampled is temperature 1.0, top-p 0.95, top-k 20."""
    config = load({"model": model, "draft_depth": draft_depth})
    from forerun.bench.subject import load as load_subject

    subject = load_subject(config)
    rows = list(measured(subject, config.draft_depth, context, repeats, answer_tokens))
    if as_json:
        about = {"model": subject.name, "numerics": subject.family.numerics.name, "kernels": subject.kernels}
        typer.echo(json.dumps(about | {"draft_depth": config.draft_depth, "results": rows}))
    else:
        Console(highlight=False).print(table(rows))


def measured(
    subject: BenchModel, depth: int | Literal["auto"], contexts: Sequence[int], repeats: int, answer_tokens: int
) -> Iterator[dict[str, Any]]:
    """One row per context, sampling and arm; shows a progress bar."""
    from forerun.bench.decode import PLAIN, SAMPLINGS, Bench, Variant, prompts, summary
    from forerun.decode.compiled import StepTable
    from forerun.decode.depth import policy_for

    steps, depths = StepTable(subject.family, eager_reason=""), {PLAIN: 0, "draft": depth}
    for context_tokens in contexts:
        variants = [Variant(sampling, arm, steps, policy_for(depth)) for sampling in SAMPLINGS for arm, depth in depths.items()]
        turns = prompts(subject.tokenizer, subject.prompter, context_tokens)
        bench = Bench(subject.tokenizer, turns, variants, repeats, answer_tokens)
        tracked = track(bench.samples(), f"{context_tokens} tokens", bench.num_samples, console=Console(stderr=True), transient=True)
        yield from ({"context_tokens": len(turns[0].tokens), **row} for row in summary(list(tracked)))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One row per sampling and context: with drafts, and its ratio to plain decoding."""
    grid = Table(*COLUMNS, box=None)
    for plain, drafting in zip(rows[::2], rows[1::2], strict=True):
        accepted = " ".join(f"{a}/{d}" for a, d in zip(drafting["accepted"], drafting["drafted"], strict=True))
        speeds = (f"{plain['tok_per_s']:.1f}", f"{drafting['tok_per_s']:.1f}", f"{drafting['ratio_to_plain']:.2f}")
        stats = (*speeds, f"{drafting['tokens_per_round']:.2f}", accepted, " ".join(map(str, drafting["depths"])))
        grid.add_row(drafting["sampling"], f"{drafting['context_tokens']:,}", *stats)
    return grid

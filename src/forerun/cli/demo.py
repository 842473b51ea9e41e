"""`forerun demo`: plays a conversation that survives two restarts, shows each turn's cost, and fails if a promise does not hold.

Knows the terminal and the result file; the turns are played and judged in forerun.demo.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from forerun.cli.lines import aligned, borderless
from forerun.demo.compare import Judge, NearTies, Verdict, faults, same_answer
from forerun.demo.conversation import SCALES, Conversation, Scale, package_sources, record
from forerun.demo.near_ties import near_ties
from forerun.demo.server import Server, serve_command
from forerun.demo.summary import as_json, finding
from forerun.demo.turns import TEMPLATE_ARGS, OnProgress, Said, Turn, play
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, PrefillProgress

MODEL = Path(str(files("forerun"))) / "data" / "demo-model"
COLUMNS = ("turn", "path", "context", "reused", "computed", "TTFT\ns", "prefill\ntok/s", "decode\ntok/s", "layout", "answer")


def demo(
    out: Annotated[Path | None, typer.Option(help="also write all figures and answers to this file, as JSON", show_default=False)] = None,
    scale: Annotated[Literal["small", "full"], typer.Option(help="small: about 1,300 tokens; full: about 24,000")] = "small",
) -> None:
    """Play five turns of an agent's conversation; the server is stopped before the second and killed before the fourth."""
    console = Console(highlight=False)
    tokenizer = Tokenizer.load(MODEL)
    conversation = record(package_sources(), SCALES[scale], lambda text: len(tokenizer.encode(text, tenant="")))
    begun_s = time.monotonic()
    with temporary_folder(console) as folder:
        turns, server = watch(console, conversation, SCALES[scale], serve_command(MODEL, folder / "bank"), folder / "server.log")
        verdicts = [same_answer(turn, judge(conversation, tokenizer)) for turn in turns]
        broken = faults(turns, verdicts)
        console.print("", table(turns, verdicts), "", *remarks(turns, verdicts), f"({time.monotonic() - begun_s:.0f} s in all)", sep="\n")
        if out is not None:
            out.write_text(json.dumps(as_json(scale, server, turns, verdicts, broken), indent=1) + "\n")
        if broken:
            console.print("\nNot as promised:", *broken, sep="\n  ", style="bold red")
            raise typer.Exit(1)


@contextmanager
def temporary_folder(console: Console) -> Iterator[Path]:
    """A new folder, removed at the end; after an exception it stays, and the console names it."""
    folder = Path(tempfile.mkdtemp(prefix="forerun-demo-"))
    try:
        yield folder
    except BaseException:
        console.print(f"The servers' log: {folder / 'server.log'}", style="dim")
        raise
    shutil.rmtree(folder)


def watch(console: Console, conversation: Conversation, scale: Scale, command: list[str], log: Path) -> tuple[list[Turn], dict[str, Any]]:
    """The played turns, and the first server's start-up line; prints progress on the console."""
    lines: list[dict[str, Any]] = []

    def start() -> Server:
        server = Server.start(command, log)
        lines.append(server.line)
        return server

    turns: list[Turn] = []
    with console.status("") as status:
        for turn in play(conversation, scale, start, progress_printer(console, status)):
            console.print(outcome(turn))
            turns.append(turn)
    return turns, lines[0]


def progress_printer(console: Console, status: Status) -> OnProgress:
    """Prints lines and the dialogue, and shows the progress of a prefill next to a spinner."""

    def show(what: str | Said | PrefillProgress) -> None:
        match what:
            case Said(speaker, text):
                console.print("\n".join(aligned([(f"  {speaker:<5}", text)], console.width)), markup=False)
            case PrefillProgress(done, total):
                status.update(f"{done:,} of {total:,} tokens")
            case _:
                console.print(f"{what} ...", style="dim")
                status.update("")

    return show


def table(turns: list[Turn], verdicts: list[Verdict]) -> Table:
    """One row per turn; fits 80 columns."""
    grid = borderless(COLUMNS, numbers=COLUMNS[2:8], wrapped=COLUMNS)
    for turn, verdict in zip(turns, verdicts, strict=True):
        report = turn.answer.report
        counts = (turn.answer.usage["prompt_tokens"], report["reused_tokens"], report["computed_tokens"])
        speeds = (_speed(report["prefill_tok_per_s"]), _speed(report["decode_tok_per_s"]))
        stats = (*(f"{count:,}" for count in counts), _seconds(report["ttft_s"]), *speeds)
        grid.add_row(turn.step.name, path_of(turn), *stats, report["layout"], verdict.short)
    return grid


def path_of(turn: Turn) -> str:
    """The path that the turn took."""
    source = turn.answer.report["source"]
    return turn.step.path if source == turn.step.source else f"{source}, not {turn.step.path}"


def outcome(turn: Turn) -> str:
    """One line on a turn."""
    report, without_s = turn.answer.report, turn.bypass.report["ttft_s"]
    cached = f"{report['reused_tokens']:,} of {turn.answer.usage['prompt_tokens']:,} tokens cached"
    instead = f" instead of {without_s:.2f} s" if report["reused_tokens"] else ""
    return f"{turn.step.name}: {cached}; first token after {report['ttft_s']:.2f} s{instead}"


def remarks(turns: list[Turn], verdicts: list[Verdict]) -> list[str]:
    """Details that the table omits, and the conclusion."""
    longer = [f"{turn.step.name}: {verdict.text}" for turn, verdict in zip(turns, verdicts, strict=True) if verdict.text != verdict.short]
    return [*longer, finding(turns, verdicts)]


def judge(conversation: Conversation, tokenizer: Tokenizer) -> Judge:
    """Compares a turn's two answers with the model's own logits; the first call loads the model into this process."""

    def ties(turn: Turn) -> NearTies:
        chat = Chat(turn.messages, conversation.tools, TEMPLATE_ARGS)
        prompt = Prompter(tokenizer, Template.load(MODEL)).encode(chat, tenant="").tokens
        return near_ties(prompt, *(tokenizer.encode(answer.text, tenant="") for answer in (turn.answer, turn.bypass)))

    return ties


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 100 else f"{seconds:.1f}"


def _speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:,.0f}"

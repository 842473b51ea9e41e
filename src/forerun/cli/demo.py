"""`forerun demo`: plays a conversation that survives two restarts, shows each turn's cost, and fails if anything is not as promised.

Knows the terminal and the result file; the turns are played and judged in forerun.demo.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from forerun.demo.compare import NearTies, Verdict, faults, same_answer
from forerun.demo.conversation import SCALES, Conversation, Scale, package_sources, record
from forerun.demo.near_ties import near_ties
from forerun.demo.server import Server, serve_command
from forerun.demo.summary import as_json, finding
from forerun.demo.turns import Answer, Turn, play, request
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Reading

MODEL = Path(str(files("forerun"))) / "data" / "demo-model"
COLUMNS = ("turn", "path", "context", "reused", "computed", "TTFT\ns", "prefill\ntok/s", "decode\ntok/s", "layout", "same\nanswer")


def demo(
    out: Annotated[Path | None, typer.Option("--json", help="also write all figures and answers to this file")] = None,
    scale: Annotated[Literal["small", "full"], typer.Option(help="small: about 1,300 tokens; full: about 24,000")] = "small",
    numerics: Annotated[Literal["auto", "reference", "served"], typer.Option(help="as of `forerun serve`")] = "auto",
) -> None:
    """Play five turns of an agent's conversation; the server is stopped before the second and killed before the fourth."""
    console = Console(highlight=False)
    tokenizer = Tokenizer.load(MODEL)
    conversation = record(package_sources(), SCALES[scale], lambda text: len(tokenizer.encode(text, tenant="")))
    folder = Path(tempfile.mkdtemp(prefix="forerun-demo-"))
    servers: list[Server] = []
    begun = time.monotonic()
    try:
        turns = watch(console, conversation, SCALES[scale], serve_command(MODEL, folder / "bank", numerics), folder / "server.log", servers)
        verdicts = [same_answer(turn, lambda turn: _near_ties(turn, conversation, SCALES[scale], tokenizer)) for turn in turns]
    except BaseException:
        console.print(f"The servers' log is kept: {folder / 'server.log'}", style="dim")
        raise
    found = faults(turns, verdicts)
    remarks = [
        f"{turn.step.name}: {verdict.words}" for turn, verdict in zip(turns, verdicts, strict=True) if verdict.words != verdict.short
    ]
    console.print(
        "", table(turns, verdicts), "", *remarks, f"{finding(turns, verdicts)} ({time.monotonic() - begun:.0f} s in all)", sep="\n"
    )
    if out is not None:
        out.write_text(json.dumps(as_json(scale, servers[0].line, turns, verdicts, found), indent=1) + "\n")
    if found:
        console.print("\nNot as promised:", *found, f"The servers' log is kept: {folder / 'server.log'}", sep="\n  ", style="bold red")
        raise typer.Exit(1)
    shutil.rmtree(folder)


def watch(console: Console, conversation: Conversation, scale: Scale, command: list[str], log: Path, servers: list[Server]) -> list[Turn]:
    """The played turns; what happens meanwhile is told on the console. Every server that is started is appended to `servers`."""

    def start() -> Server:
        servers.append(Server.start(command, log))
        return servers[-1]

    with console.status("") as status:

        def tell(what: str | Reading) -> None:
            if isinstance(what, str):
                console.print(f"{what} ...", style="dim")
                status.update("")
            else:
                status.update(f"{what.done_tokens:,} of {what.total_tokens:,} tokens")

        turns: list[Turn] = []
        for turn in play(conversation, scale, start, tell):
            console.print(news(turn))
            turns.append(turn)
        return turns


def table(turns: list[Turn], verdicts: list[Verdict]) -> Table:
    """One row a turn; fits 80 columns."""
    drawn = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for number, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="right" if 2 <= number < 8 else "left")
    for turn, verdict in zip(turns, verdicts, strict=True):
        report = turn.answer.report
        counts = (turn.answer.usage["prompt_tokens"], report["reused_tokens"], report["computed_tokens"])
        speeds = (_speed(report["prefill_tok_per_s"]), _speed(report["decode_tok_per_s"]))
        figures = (*(f"{count:,}" for count in counts), f"{report['ttft_s']:.2f}", *speeds)
        drawn.add_row(turn.step.name, taken(turn), *figures, report["layout"], verdict.short)
    return drawn


def taken(turn: Turn) -> str:
    """The path that the turn took, in words."""
    source = turn.answer.report["source"]
    return turn.step.path if source == turn.step.source else f"{source}, not {turn.step.path}"


def news(turn: Turn) -> str:
    """One line on a turn that was just played."""
    report, without_s = turn.answer.report, turn.bypass.report["ttft_s"]
    known = f"{report['reused_tokens']:,} of {turn.answer.usage['prompt_tokens']:,} tokens known"
    instead = f" instead of {without_s:.2f} s" if report["reused_tokens"] else ""
    return f"{turn.step.name}: {known}; first token after {report['ttft_s']:.2f} s{instead}"


def _near_ties(turn: Turn, conversation: Conversation, scale: Scale, tokenizer: Tokenizer) -> NearTies:
    body = request(conversation, scale, turn.messages, "bypass")
    chat = Chat(turn.messages, conversation.tools, {"enable_thinking": body["enable_thinking"]})
    prompt = Prompter(tokenizer, Template.load(MODEL)).encode(chat, tenant="").tokens
    return near_ties(prompt, *(_tokens(answer, tokenizer) for answer in (turn.answer, turn.bypass)))


def _tokens(answer: Answer, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(answer.text, tenant="")


def _speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:,.0f}"

"""`forerun report`: restores in a request log, and requests that were slower than their peers. Needs no server and no MLX."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forerun.cli.conversations import counted
from forerun.cli.lines import AsJson, borderless
from forerun.config import load
from forerun.errors import ForerunError
from forerun.log import short_id
from forerun.request_log.analysis import Group, MissGroup, Outlier, Sharing, Summary, summarise
from forerun.request_log.entry import Entry, decode
from forerun.request_log.file import read_lines

GROUP_COLUMNS = ("source", "layout", "count", "context", "prefill\ntok/s", "decode\ntok/s", "queue\ns", "first\ntoken s", "steps\ncompiled")
MISS_COLUMNS = ("reason", "where", "count", "tokens\ncomputed")
WRAPPED = ("layout", "where")  # columns whose text may break
RATIO = "vs\npeers"
SPEEDS = ("prefill\ntok/s", RATIO, "decode\ntok/s", RATIO, "queue\ns", "first\ntoken s", RATIO)
SLOW_COLUMNS = ("", "time", "context", "new", *SPEEDS)


def report(
    log: Annotated[Path | None, typer.Argument(help="request log; default: that of the settings", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a request log: restores by source and layout, what was computed and why, requests slower than their peers, and why."""
    path = log if log is not None else load({}).request_log_path
    entries, bad = parse(read_lines(path))
    if not entries:
        raise ForerunError(f"{path} holds no request", hint=bad[0] if bad else "a request is logged when it ends")
    summary = summarise(entries)
    if as_json:
        typer.echo(json.dumps({"requests": len(entries), "bad_lines": bad, **plain(summary)}))
    else:
        show(Console(highlight=False, markup=False), summary, len(entries), bad)


def parse(lines: list[str]) -> tuple[list[Entry], list[str]]:
    """The entries, and the errors in lines that are not entries."""
    entries, bad = [], []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(decode(line))
        except ForerunError as error:
            bad.append(f"line {number} is not an entry of a request log: {error}")
    return entries, bad


def show(console: Console, summary: Summary, num_requests: int, bad: list[str]) -> None:
    """The summary for people."""
    console.print(counted(num_requests, "request"), *bad, "", groups_table(summary.groups), "", sep="\n")
    if summary.sharing:
        console.print(sharing_line(summary.sharing), "", sep="\n")
    if summary.misses:
        console.print("Misses:", misses_table(summary.misses), "", sep="\n")
        lasts = ", ".join(f"{short_id(each.last_id)} ({each.kind})" for each in summary.misses)
        console.print(f"last request of each: {lasts}", "", sep="\n")
    if summary.outliers:
        console.print("Not as configured, or slower than peers at about the same context:", slow_table(summary.outliers), "", sep="\n")
        reasons = [
            f"{number} {short_id(each.served.entry.id)} ({each.served.report.source}): {each.reason}"
            for number, each in enumerate(summary.outliers, start=1)
        ]
        console.print(*reasons, "", sep="\n")
    else:
        console.print("None was slower than its peers at about the same context, and all ran as configured.")
    if summary.misses or summary.outliers:
        console.print("`forerun bank explain ID` shows more about one.")
    for error, num in summary.unserved.most_common():
        console.print(f"{num} not completed: {error}")


def groups_table(groups: tuple[Group, ...]) -> Table:
    """One row per source and layout; medians."""
    grid = borderless(GROUP_COLUMNS, numbers=GROUP_COLUMNS[2:], wrapped=WRAPPED)
    for each in groups:
        contexts = f"{each.min_context_tokens:,}" + (f"-{each.max_context_tokens:,}" if each.num > 1 else "")
        speeds = (_number(each.prefill_tok_per_s, 1), _number(each.decode_tok_per_s, 1), _number(each.queue_s, 1), _number(each.ttft_s, 2))
        compiled = "-" if each.compiled_frac is None else f"{each.compiled_frac:.0%}"
        grid.add_row(each.source, each.layout, str(each.num), contexts, *speeds, compiled)
    return grid


def sharing_line(sharing: Sharing) -> str:
    """What requests had in common; medians."""
    rounds = f"{_number(sharing.sequences_per_round, 1)} sequences and {_number(sharing.rows_per_round, 1)} rows a round"
    requests = counted(sharing.num, "request")
    return f"{requests} beside others: {rounds}, {sharing.others_s:.1f} s for others; {sharing.num_forked} forked"


def misses_table(misses: tuple[MissGroup, ...]) -> Table:
    """One row per reason."""
    grid = borderless(MISS_COLUMNS, numbers=MISS_COLUMNS[2:], wrapped=WRAPPED)
    for each in misses:
        grid.add_row(each.kind, each.location, str(each.num), f"{each.computed_tokens:,}")
    return grid


def slow_table(slow: tuple[Outlier, ...]) -> Table:
    """One row per request."""
    grid = borderless(SLOW_COLUMNS, numbers=SLOW_COLUMNS[2:], wrapped=WRAPPED)
    for number, each in enumerate(slow, start=1):
        report = each.served.report
        prefill = _number(report.prefill_tok_per_s, 1), _number(each.prefill_ratio, 2, "x")
        decode = _number(report.decode_tok_per_s, 1), _number(each.decode_ratio, 2, "x")
        first = _number(report.queue_s, 1), _number(each.served.ttft_s, 2), _number(each.ttft_ratio, 2, "x")
        moment = each.served.entry.time[5:16].replace("T", " ")
        grid.add_row(str(number), moment, f"{each.served.context_tokens:,}", f"{report.computed_tokens:,}", *prefill, *decode, *first)
    return grid


def plain(summary: Summary) -> dict[str, Any]:
    """The summary for programs."""
    slow = [
        {
            "id": each.served.entry.id,
            "time": each.served.entry.time,
            "context_tokens": each.served.context_tokens,
            "prefill_ratio": each.prefill_ratio,
            "decode_ratio": each.decode_ratio,
            "ttft_ratio": each.ttft_ratio,
            "faults": each.faults,
            "causes": each.causes,
            "report": asdict(each.served.report),
        }
        for each in summary.outliers
    ]
    groups, misses = ([asdict(each) for each in values] for values in (summary.groups, summary.misses))
    sharing = asdict(summary.sharing) if summary.sharing else None
    return {"groups": groups, "sharing": sharing, "missed": misses, "slow": slow, "unserved": summary.unserved}


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"

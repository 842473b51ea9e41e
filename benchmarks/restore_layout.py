"""Does a conversation from SSD run as fast as one from RAM, and what if it were restored in a layout that nobody requested?

    python benchmarks/restore_layout.py [--dry-run] [--out FILE] [--model M] [--arms asked,fault] [--baseline-python PATH]
                                        [--scale small|full]

The report's turns A1 to A5 on private banks that are empty at first; the server is restarted before A2 and A4, so that these restore
from SSD. Same prompts, flags and seeds on every arm: `asked` is this package, `fault` the same with the fault of the original report put
in, and --baseline-python names the Python of another installed forerun. Then a greedy pass, whose answers must be equal, and pairs of one
turn restored from RAM and from SSD. The report's 56,000 tokens need --model; `full` has about 24,000.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from forerun.cli.demo import MODEL
from forerun.cli.report import parse
from forerun.demo.conversation import SCALES, Conversation, package_sources, record
from forerun.demo.server import Server
from forerun.request_log.analysis import summarise
from forerun.request_log.file import read_lines
from forerun.serve.client import health
from forerun.text.tokenizer import Tokenizer
from layouts.arms import GREEDY, SAMPLED, Arm, arms, log_of, running
from layouts.table import checks, markdown
from layouts.turns import FIRST_CAP, GREEDY_CAP, LATER_CAP, MAX_PAIRS, MIN_PAIRS, TURNS, copied, five_turns, pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", help="model folder; the bundled model if not given")
    parser.add_argument("--arms", type=lambda names: names.split(","), default=["asked", "fault"], help="asked, fault or both")
    parser.add_argument("--baseline-python", help="Python of another installed forerun, to run as one more arm")
    parser.add_argument("--scale", choices=sorted(SCALES), default="small")
    options = parser.parse_args()
    if unknown := set(options.arms) - {"asked", "fault"}:
        parser.error(f"no such arm: {', '.join(sorted(unknown))}")
    compared = arms(options.arms, options.model, options.baseline_python)
    if options.dry_run:
        print(*plan(compared, options.scale), sep="\n")
    else:
        measure(options, compared)


def plan(compared: list[Arm], scale: str) -> list[str]:
    """What would be done, one line each."""
    turns = ", ".join(f"{name} ({path})" for name, path in TURNS)
    lines = [f"{arm.name}: {' '.join(arm.command(Path('FOLDER')))}" for arm in compared]
    lines.append(f"each, at scale {scale}: {turns}; restarted before A2 and A4; {FIRST_CAP} then {LATER_CAP} tokens of {SAMPLED}")
    lines.append(f"each, on another bank: the same, {GREEDY_CAP} tokens, greedy")
    return [*lines, *([f"asked: {MIN_PAIRS} to {MAX_PAIRS} pairs of one turn, RAM and SSD"] if compared[0].name == "asked" else [])]


def measure(options: argparse.Namespace, compared: list[Arm]) -> None:
    tokenizer = Tokenizer.load(Path(options.model) if options.model else MODEL)
    talk = record(package_sources(), SCALES[options.scale], lambda text: len(tokenizer.encode(text, tenant="")))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        info = about(compared[0], home / "about")
        result: dict[str, Any] = {"scale": options.scale, "arms": {arm.name: passes(arm, home / arm.name, talk) for arm in compared}}
        if "asked" in result["arms"]:
            last = result["arms"]["asked"]["greedy"][-1]
            base = (*last["messages"], {"role": "assistant", "content": last["text"]})
            sampling = GREEDY | {
                "logit_bias": {str(token): -100 for token in tokenizer.stop_ids}
            }  # so that all answers have the same length
            result["pairs"] = pairs(compared[0], home / "asked" / "greedy", home / "pairs", talk, base, sampling, print)
    result["checks"] = checks(result)
    publish(options, compared, info, result)


def passes(arm: Arm, folder: Path, talk: Conversation) -> dict[str, Any]:
    """Both passes of one arm, and what its request log shows of the first."""
    sampled = five_turns(arm, folder / "sampled", talk, SAMPLED, (FIRST_CAP, LATER_CAP), print)
    greedy = five_turns(arm, copied(folder / "sampled", folder / "greedy"), talk, GREEDY, (GREEDY_CAP, GREEDY_CAP), print)
    return {"sampled": sampled, "greedy": greedy, "flagged": flagged(log_of(folder / "sampled")) if arm.has_log else None}


def flagged(log: Path) -> list[str]:
    """The turns that `forerun report` shows as not run in the requested layout, by the log alone."""
    entries, _ = parse(read_lines(log))
    ids = [entry.id for entry in entries]
    return [TURNS[ids.index(each.served.entry.id)][0] for each in summarise(entries).outliers if each.faults]


def about(arm: Arm, folder: Path) -> dict[str, Any]:
    """The model and machine that a server of this arm reports."""
    with running(arm, folder) as server:
        return {**_line(server), "health": health(server.url)["model"]}


def _line(server: Server) -> dict[str, Any]:
    return {key: value for key, value in server.line.items() if key not in ("url", "pid", "bank_dir")}


def publish(options: argparse.Namespace, compared: list[Arm], info: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the result file with its evidence, and print the table."""
    from evidence import evidence, model_of, write

    config = {
        "scale": options.scale,
        "sampling": SAMPLED,
        "caps": [FIRST_CAP, LATER_CAP],
        "thinking": False,
        "preset": "the server's defaults",
        "commands": {arm.name: arm.command(Path("FOLDER"))[len(arm.program) :] for arm in compared},
    }
    head = evidence(kernels=info["kernels"], model_digest="", numerics=info["numerics"], config=config)
    head |= {"server": info, "model": model_of(Path(options.model) if options.model else MODEL)}
    for arm in result["arms"].values():
        for turn in arm["sampled"] + arm["greedy"]:
            del turn["messages"]
    write(options.out, head | result)
    print(markdown(result))
    print(*(f"{'holds' if each['holds'] else 'FAILS'}: {each['what']}: {each['value']}" for each in result["checks"]), sep="\n")


if __name__ == "__main__":
    main()

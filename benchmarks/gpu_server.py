"""Does forerun run on a GPU: commands, conversations across restarts, long prompts, layouts, the vendors' clients, several agents?

    python benchmarks/gpu_server.py [--sections commands,clients,...] [--limit-s 400] [--tiny] [--dry-run] [--out FILE]

Everything but the random checkpoint is done by processes of `forerun` and over HTTP, as users do it. Needs the `openai` and `anthropic`
packages, and for the section `tests` those of the test suite. Each part runs separately, is printed, and written to the file at once.
See gpu.md for how to run it, and how to read the results.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

from evidence import evidence  # noqa: E402
from forerun.models.load import DEMO_MODEL  # noqa: E402
from gpu import device  # noqa: E402
from on_gpu import checkpoint, commands, real_clients  # noqa: E402
from on_gpu.report import Report  # noqa: E402
from on_gpu.restarts import ChatSession  # noqa: E402
from on_gpu.shapes import SHAPES  # noqa: E402

TESTS = ("tests/state", "tests/kernels", "tests/decode", "tests/bank", "tests/contracts", "tests/engine", "tests/end_to_end/test_sdks.py")
ARMS = {"contiguous": ("--decode-layout", "contiguous"), "paged": ("--decode-layout", "paged")}
ROOM = ("--bank-ram-bytes", "16GiB", "--bank-disk-bytes", "20GiB", "--bank-daily-write-bytes", "40GiB")


class Sizes(NamedTuple):
    """prompt, longest: tokens of first prompts; longest is beyond the contiguous limit of `auto`. later: of a tool's result.
    seconds: agents at work.
    """

    shape: dict[str, Any]
    prompt: int
    longest: int
    later: int
    answer: int
    agents: int
    chars: int
    seconds: float
    tests: tuple[str, ...]
    processes: int


TINY_SHAPE = SHAPES["tiny"] | {"text_config": SHAPES["tiny"]["text_config"] | {"vocab_size": 9000}}
FULL = Sizes(SHAPES["0.8B"], 30_000, 150_000, 1000, 128, agents=6, chars=8000, seconds=45, tests=TESTS, processes=14)
TINY = Sizes(TINY_SHAPE, 600, 1200, 100, 12, agents=2, chars=1000, seconds=5, tests=("tests/state/test_cache.py",), processes=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(PARTS), help="which, in order")
    parser.add_argument("--limit-s", type=float, default=400.0, help="no part is begun after so many seconds")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, short prompts: runs every line, measures nothing")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sections = options.sections.split(",")
    if unknown := set(sections) - set(PARTS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if options.dry_run:
        print(f"would try {', '.join(sections)} on {device()} for at most {options.limit_s:.0f} s")
        return
    with tempfile.TemporaryDirectory(prefix="forerun-gpu-") as folder:
        run(sections, TINY if options.tiny else FULL, Report(options.out, {}, options.limit_s), Path(folder), is_tiny=options.tiny)


def run(sections: list[str], sizes: Sizes, report: Report, folder: Path, *, is_tiny: bool) -> None:
    report.part("machine", "evidence", lambda: head(sizes, is_tiny=is_tiny))
    model = folder / "random"
    if {"restarts", "agents"} & set(sections):
        report.part("machine", "parameters", lambda: checkpoint.write(model, sizes.shape))
    for section in sections:
        subfolder = folder / section
        subfolder.mkdir()
        PARTS[section](report, model, subfolder, sizes, is_tiny)


def played(report: Report, model: Path, folder: Path, sizes: Sizes, is_tiny: bool) -> None:
    """The demonstration before the doctor: it is the first to compile kernels, as for a new user."""
    for scale in ("small",) if is_tiny else ("small", "full"):
        report.part("commands", f"demo_{scale}", lambda scale=scale: commands.demo(scale, folder))
    report.part("commands", "doctor", commands.doctor)


def agents(report: Report, model: Path, folder: Path, sizes: Sizes, is_tiny: bool) -> None:
    how: dict[str, Any] = {"agents": sizes.agents, "first_chars": 4 * sizes.chars, "later_chars": sizes.chars, "seconds": sizes.seconds}
    report.part("agents", "agents", lambda: real_clients.agents_at_work(model, folder, **how))


def first_use(report: Report, model: Path, folder: Path, sizes: Sizes, is_tiny: bool) -> None:
    for cudnn in ("0", "1"):
        report.part("first_use", f"cudnn_{cudnn}", lambda cudnn=cudnn: commands.first_use(cudnn, folder, is_tiny=is_tiny))


def tests(report: Report, model: Path, folder: Path, sizes: Sizes, is_tiny: bool) -> None:
    for path in sizes.tests:
        report.part("tests", path, lambda path=path: commands.tests((path,), sizes.processes, folder))


def restarts(report: Report, model: Path, folder: Path, sizes: Sizes, is_tiny: bool) -> None:
    """The bundled model in pages; random weights in both layouts, without drafts, and beyond the contiguous limit."""
    talks = {"bundled_paged": ChatSession(DEMO_MODEL, ARMS["paged"], min(sizes.prompt, 20_000), sizes.later, sizes.answer)}
    talks |= {name: ChatSession(model, (*how, *ROOM), sizes.prompt, sizes.later, sizes.answer) for name, how in ARMS.items()}
    talks["depth_0"] = talks["contiguous"]._replace(options=(*ROOM, "--draft-depth", "0"))
    talks["longest"] = ChatSession(model, ROOM, sizes.longest, sizes.later, sizes.answer)
    for name, talk in talks.items():
        subfolder = folder / name
        subfolder.mkdir()
        report.part("restarts", name, lambda talk=talk, subfolder=subfolder: talk.play(subfolder))


def head(sizes: Sizes, *, is_tiny: bool) -> dict[str, Any]:
    """Evidence of the run."""
    config = sizes._asdict() | {"is_tiny": is_tiny, "shape": "0.8B" if not is_tiny else "tiny"}
    found = evidence(kernels="on the device", model_digest="see tests/gates", numerics="fast", config=config)
    return found | {"device": device(), "model": {"name": "bundled, and the shape of 0.8B with random weights", "quantisation": "none"}}


PARTS = {
    "commands": played,
    "clients": lambda report, model, folder, sizes, is_tiny: real_clients.clients(report, DEMO_MODEL, folder),
    "restarts": restarts,
    "agents": agents,
    "first_use": first_use,
    "tests": tests,
}


if __name__ == "__main__":
    main()

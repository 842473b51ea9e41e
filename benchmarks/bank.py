"""What does the bank cost? Look-ups, bytes written by a turn, what saving takes from a request that runs, and a restore from a cold disk.

    python benchmarks/bank.py [--parts look_up written saving restoring] [--dry-run] [--out FILE]

A part that is not requested stays in FILE as it is. `benchmarks/banked/` describes what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

from banked import look_up, restoring, saving, written  # noqa: E402
from evidence import evidence, model_of, write  # noqa: E402
from forerun.kernels import arithmetic  # noqa: E402
from forerun.models.load import DEMO_MODEL  # noqa: E402

PARTS = {"look_up": look_up, "written": written, "saving": saving, "restoring": restoring}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(*(f"{name}: {PARTS[name].CONFIG}" for name in options.parts), sep="\n")
        return
    previous = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    publish(options.out, previous | {name: measured(name) for name in options.parts})


def measured(name: str) -> dict[str, Any]:
    """One part, with its evidence."""
    part, here = PARTS[name], arithmetic.here()
    found = part.measure()
    digest = model_of(DEMO_MODEL)["digest"]
    return evidence(kernels=here.kernels, model_digest=digest, numerics=here.numerics.name, config=part.CONFIG) | found


def publish(out: Path | None, found: dict[str, Any]) -> None:
    """Print what holds, and write the file."""
    checks = {what: holds for name, part in PARTS.items() if name in found for what, holds in part.checks(found[name]).items()}
    print(*(f"{'holds' if holds else 'FAILS'}: {what}" for what, holds in checks.items()), sep="\n")
    write(out, {name: found[name] for name in PARTS if name in found} | {"checks": checks})


if __name__ == "__main__":
    main()

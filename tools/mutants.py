"""Attack the tests: make one one-line change at a time to a copy of src/, run the tests named for it, expect them to fail.

    python tools/mutants.py [WORD]      only the mutants whose file or description contains WORD

The mutants are data, in mutants.toml in this folder. Exit code 1 if one survives, or if the tests fail without any change.
Knows nothing of what the lines mean.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

ROOT = Path(__file__).parents[1]
PASSED, FAILED = 0, 1  # pytest's exit codes; any other means that the tests did not run
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, a line of `file` without its indentation, becomes `new`; then `tests` (paths and node ids) must fail."""

    what: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """`text` with the change made. Raises ValueError unless exactly one line is `old`."""
        lines = text.splitlines(keepends=True)
        matches = [i for i, line in enumerate(lines) if line.strip() == self.old]
        if len(matches) != 1:
            raise ValueError(f"mutant {self.what!r}: {len(matches)} lines of {self.file} are {self.old!r}, want 1")
        lines[matches[0]] = lines[matches[0]].replace(self.old, self.new)
        return "".join(lines)


def mutants() -> list[Mutant]:
    """All that mutants.toml lists."""
    return [Mutant(**fields) for fields in tomllib.loads((ROOT / "tools" / "mutants.toml").read_text())["mutant"]]


def outcome(source: Path, tests: list[str]) -> int:
    """pytest's exit code for `tests` with the package taken from `source`. A run over the time limit counts as failed."""
    # No bytecode: a change of equal length within a second would go unnoticed.
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return FAILED


def verdict(source: Path, mutant: Mutant) -> str:
    """ "killed", "SURVIVED", or what else happened. `source` is as before afterwards."""
    path = source.parent / mutant.file
    text = path.read_text()
    path.write_text(mutant.applied(text))
    code = outcome(source, mutant.tests)
    path.write_text(text)
    return {FAILED: "killed", PASSED: "SURVIVED"}.get(code, f"NOT TESTED (pytest exit code {code})")


def main(word: str) -> int:
    chosen = [mutant for mutant in mutants() if word in f"{mutant.file} {mutant.what}"]
    with TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for tests in {tuple(mutant.tests) for mutant in chosen}:
            if outcome(source, list(tests)) != PASSED:
                print(f"without any change, {' '.join(tests)} does not pass")
                return 1
        alive = 0
        for mutant in chosen:
            start_s = monotonic()
            result = verdict(source, mutant)
            alive += result != "killed"
            print(f"{result:<10} {monotonic() - start_s:5.1f} s  {mutant.file}: {mutant.what}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))

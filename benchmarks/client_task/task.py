"""The task: a folder with a bug and its test, three prompts, and whether each is done. Knows no client and no server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FILE = "calc.py"
SOURCE = "def add(a, b):\n    return a + b\n\n\ndef divide(a, b):\n    return a // b\n"
TEST_FILE = "test_calc.py"
TEST = """import unittest

import calc


class CalcTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(2, 3), 5)

    def test_divide(self):
        self.assertEqual(calc.divide(1, 2), 0.5)


if __name__ == "__main__":
    unittest.main()
"""
TEST_COMMAND = "python3 -m unittest -q"
PROMPTS = (
    "There is a bug in calc.py: its test fails. Find and fix the bug.",
    "Add a power function to calc.py: power(a, b) is a to the power of b.",
    "In one sentence: what did you change?",
)
SENTENCE = "I replaced floor division by true division in `divide` and added a `power` function."
LIMIT_S = 60.0
NEW_POWER = "import calc; assert calc.power(2, 10) == 1024"


@dataclass(frozen=True, slots=True)
class Edit:
    """In FILE, `new` in the place of `old`."""

    old: str
    new: str


EDITS = (
    Edit("    return a // b", "    return a / b"),
    Edit("    return a / b", "    return a / b\n\n\ndef power(a, b):\n    return a**b"),
)


def edited(num: int) -> str:
    """FILE after the first `num` edits."""
    source = SOURCE
    for edit in EDITS[:num]:
        source = source.replace(edit.old, edit.new)
    return source


def create(folder: Path) -> None:
    """A new git repository with the bug."""
    folder.mkdir(parents=True)
    (folder / FILE).write_text(SOURCE)
    (folder / TEST_FILE).write_text(TEST)
    (folder / ".gitignore").write_text("__pycache__/\n.aider*\n")
    author = ["-c", "user.name=Developer", "-c", "user.email=developer@example.com"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*author, "commit", "-q", "-m", "Calculator"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True, timeout=LIMIT_S)


def is_done(turn: int, folder: Path, answer: str) -> bool:
    """Whether the turn's prompt (0, 1 or 2) is carried out, and what the prompts before it asked for still holds.

    answer: what the client printed.
    """
    passes = _succeeds(folder, "-m", "unittest", "-q")
    has_power = turn == 0 or _succeeds(folder, "-c", NEW_POWER)
    return passes and has_power and (turn < 2 or SENTENCE in " ".join(answer.split()))


def _succeeds(folder: Path, *arguments: str) -> bool:
    command = [sys.executable, "-B", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=LIMIT_S).returncode == 0

"""The README is short, and what it shows and lists to run exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer

from forerun.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMAND = re.compile(r"\bforerun((?: [a-z][a-z-]*| --[a-z-]+)+)")


def test_is_at_most_500_words() -> None:
    assert len(README.split()) <= 500


def test_shows_the_five_turns() -> None:
    assert "](docs/five-turns.svg)" in README


def test_the_ratio_to_mlx_lm_is_that_of_the_result() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "against_mlx_lm.json").read_text())
    assert f"{100 * found['restored_ratio']:.0f} % of the time that mlx-lm's server" in README


def unknown(text: str) -> list[str]:
    """The commands and flags of `forerun` in a text that the program does not have."""
    wrong = []
    for command in COMMAND.findall(text):
        at: Any = typer.main.get_command(app)
        for word in command.split():
            if word.startswith("--"):
                wrong += [] if any(word in parameter.opts for parameter in at.params) else [f"{at.name} {word}"]
            elif hasattr(at, "commands"):
                if word not in at.commands:
                    wrong.append(word)
                    break
                at = at.commands[word]
    return wrong


def test_commands_exist() -> None:
    spans = re.findall(r"`([^`\n]*)`", README) + re.findall(r"^ *(forerun .*)$", README, re.MULTILINE)
    assert len(spans) > 20
    assert [name for span in spans for name in unknown(span)] == []


def test_an_unknown_command_is_seen() -> None:
    assert unknown("forerun nowhere; forerun bank nothing; forerun connect pi --wrong; forerun serve Qwen/X") == [
        "nowhere",
        "nothing",
        "connect --wrong",
    ]


def test_make_targets_exist() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(re.findall(r"^make (\S+)", README, re.MULTILINE)) <= set(targets)


def test_the_example_is_python() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    compile("\n".join(line.removeprefix("   ") for line in example.splitlines()), "README.md", "exec")

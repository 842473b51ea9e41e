"""Exit codes, and what an error looks like."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun import __version__
from forerun.cli import exit_code
from forerun.errors import BankError, ConfigError, ForerunError, UnsupportedError


@pytest.mark.parametrize(
    ("error", "code"), [(ForerunError("x"), 1), (BankError("x"), 1), (ConfigError("x"), 2), (UnsupportedError("x"), 3)]
)
def test_exit_codes(error: ForerunError, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_two_lines(forerun: Callable[..., Any], tmp_path: Path) -> None:
    ran = forerun("bank", "prune", "--bank-dir", tmp_path, "--to-bytes", "much")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == ["forerun: --to-bytes 'much': not a size in bytes; write 2GiB, 500MB or a plain number"]


def test_a_hint_is_a_line_of_its_own(forerun: Callable[..., Any]) -> None:
    ran = forerun("chat", "--url", "http://127.0.0.1:9")
    assert ran.code == 1
    assert ran.err.splitlines() == ["forerun: no server answers at http://127.0.0.1:9", "hint: start one with `forerun serve`"]


@pytest.mark.parametrize("arguments", [("nonsense",), ("demo", "--scale", "huge"), ("serve", "--prot", "1"), ()])
def test_usage_errors(forerun: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    assert forerun(*arguments).code == 2


FLAGS = {
    "serve": "--host --port --bank-dir --bank-ram-bytes --bank-disk-bytes --context --draft-depth --api-key-file --json",
    "chat": "--url --session",
    "demo": "--out --scale",
    "bank": "ls show verify prune",
    "bench": "decode",
}


@pytest.mark.parametrize("command", FLAGS)
def test_help_names_all_flags(forerun: Callable[..., Any], command: str) -> None:
    ran = forerun(command, "--help")
    assert ran.code == 0
    assert [flag for flag in FLAGS[command].split() if flag not in ran.out] == []


def test_the_version_that_runs(forerun: Callable[..., Any]) -> None:
    ran = forerun("--version")
    assert (ran.code, ran.out) == (0, f"forerun {__version__}\n")


def test_help_needs_no_mlx() -> None:
    program = "import sys, forerun.cli; assert 'mlx' not in sys.modules and 'mlx.core' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

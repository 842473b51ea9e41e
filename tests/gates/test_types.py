"""A cache in another layout than the one that was asked for does not pass the type checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each wrong line carries the code of an error that mypy must give for it; no other line may have one.
SNIPPET = """
from collections.abc import Sequence
from typing import Any

from forerun.bank.bank import Bank
from forerun.bank.match import RestorePlan
from forerun.bank.restore import RestoreContext, RestoredState
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous, L, Paged
from forerun.state.record import Record
from forerun.state.conversion import materialise
from forerun.state.store import Arena


def load(context: RestoreContext[L], plan: RestorePlan) -> tuple[Cache[L], int] | None:
    return materialise(context.sources.arena, [], None, context.layout, context.headroom_tokens), 0


def load_in_one_layout(context: RestoreContext[L], plan: RestorePlan) -> tuple[Cache[L], int] | None:
    return materialise(context.sources.arena, [], None, Paged(16), context.headroom_tokens), 0  # arg-type


class BankOfOneLayout(Bank):
    def restore(
        self, tokens: Sequence[int], *, tenant: str, session: str | None, layout: L, headroom_tokens: int, agent: str = ""
    ) -> RestoredState[L]:
        return super().restore(tokens, tenant=tenant, session=session, layout=Contiguous(), headroom_tokens=headroom_tokens)  # arg-type


def stored_with_a_layout(arena: Arena, record: Record, layout: L) -> Cache[L]:
    return materialise(arena, [], record, record.layout, 0)  # attr-defined


def decode(cache: Cache[Paged]) -> None: ...


def serve(bank: Bank, tokens: list[int]) -> None:
    decode(bank.restore(tokens, tenant="", session=None, layout=Paged(16), headroom_tokens=64).cache)
    decode(bank.restore(tokens, tenant="", session=None, layout=Contiguous(), headroom_tokens=64).cache)  # arg-type
    decode(bank.restore(tokens, tenant="", session=None, headroom_tokens=64).cache)  # call-arg
    decode(bank.restore(tokens, tenant="", session=None, layout=None, headroom_tokens=64).cache)  # type-var
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """(line, code) of every error that mypy --strict finds in the snippet."""
    snippet = tmp_path_factory.mktemp("types") / "snippet.py"
    snippet.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(snippet)]
    output = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    found = re.findall(r"snippet\.py:(\d+): error: .*\[([\w-]+)\]$", output, re.MULTILINE)
    assert f"Found {len(found)} error" in output, output
    return [(int(line), code) for line, code in found]


def test_every_wrong_line_is_rejected_and_no_other(errors: list[tuple[int, str]]) -> None:
    marked = enumerate(SNIPPET.splitlines(), start=1)
    expected = {(number, line.rpartition("  # ")[2]) for number, line in marked if "  # " in line}
    assert expected <= set(errors)
    assert {number for number, _ in expected} == {number for number, _ in errors}

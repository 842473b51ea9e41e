"""The README shows the figures of the result file that it names."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.five_turns import markdown

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "five_turns.json"


def test_the_table_is_that_of_the_result() -> None:
    readme = (ROOT / "README.md").read_text()
    assert markdown(json.loads(RESULT.read_text())) in readme
    assert str(RESULT.relative_to(ROOT)) in readme

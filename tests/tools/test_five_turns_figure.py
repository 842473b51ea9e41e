"""docs/five-turns.svg is what the script makes of the committed result."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from tools.five_turns_figure import FIGURE, RESULT, figure, same

TURNS = json.loads(RESULT.read_text())["turns"]


def test_the_committed_figure_is_that_of_the_committed_result() -> None:
    assert FIGURE.read_text() == figure(json.loads(RESULT.read_text())), "run python -m tools.five_turns_figure"


def test_the_figure_shows_every_turn_with_both_times() -> None:
    texts = [each.text for each in ElementTree.fromstring(FIGURE.read_text()).iter("{http://www.w3.org/2000/svg}text")]
    for turn in TURNS:
        assert turn["turn"] in texts
        assert {f"{turn[variant]['report']['ttft_s']:.2f}" for variant in ("answer", "bypass")} <= set(texts)


@pytest.mark.parametrize(("is_same", "words"), [(True, "are equal in every turn"), (False, "differ in A1, A2, A3, A4, A5.")])
def test_the_figure_reports_differing_answers(is_same: bool, words: str) -> None:
    assert words in same([turn | {"same": {"is_same": is_same}} for turn in TURNS])

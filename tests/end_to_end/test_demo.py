"""The demonstration itself, small: real processes, the bundled model, two restarts."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from forerun.cli.demo import demo


def test_five_turns_survive_two_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    demo(tmp_path / "result.json", "small")
    result = json.loads((tmp_path / "result.json").read_text())
    turns = result["turns"]
    assert result["faults"] == []
    assert [turn["answer"]["report"]["source"] for turn in turns] == ["cold", "ssd", "ram", "ssd", "ram"]
    for turn in turns:
        assert turn["answer"]["text"] == turn["bypass"]["text"] != ""
        assert (
            turn["answer"]["report"]["reused_tokens"] + turn["answer"]["report"]["computed_tokens"]
            == turn["answer"]["usage"]["prompt_tokens"]
        )
    assert len({turn["answer"]["report"]["session"] for turn in turns}) == 1
    for before, turn in pairwise(turns):
        assert turn["answer"]["report"]["reused_tokens"] >= before["answer"]["usage"]["prompt_tokens"]
    computed_tokens = sum(turn[variant]["report"]["computed_tokens"] for turn in turns for variant in ("answer", "bypass"))
    assert computed_tokens < 6000
    assert "5 of 5 answers are the same" in capsys.readouterr().out.replace("\n", " ")

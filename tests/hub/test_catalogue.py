"""Names and folders: how models are found, and the errors for those that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.errors import ModelError
from forerun.hub import catalogue
from forerun.hub.catalogue import PulledModel


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PulledModel:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    entry = PulledModel("acme/tiny", "main", "a" * 40, tmp_path / "weights", "2026-11-29T20:00:00+00:00", {"config.json": 2})
    catalogue.remember(entry)
    return entry


def test_what_was_pulled_is_found_by_its_name(entry: PulledModel) -> None:
    assert catalogue.locate("acme/tiny") == ("acme/tiny", entry.folder)
    assert (catalogue.find("acme/tiny"), catalogue.pulled()) == (entry, [entry])


def test_names_without_an_owner(entry: PulledModel) -> None:
    catalogue.remember(replace(entry, repo="gpt2"))
    assert catalogue.locate("gpt2") == ("gpt2", entry.folder)


def test_a_folder_of_that_name_comes_first(entry: PulledModel, tmp_path: Path) -> None:
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    assert catalogue.locate("acme/tiny") == ("tiny", Path("acme/tiny"))


@pytest.mark.parametrize("damage", ["cut off", "gone"])
def test_an_incomplete_model_is_refused(entry: PulledModel, damage: str) -> None:
    path = entry.folder / "config.json"
    path.write_text("{") if damage == "cut off" else path.unlink()
    with pytest.raises(ModelError, match=r"acme/tiny is not complete: config\.json") as caught:
        catalogue.locate("acme/tiny")
    assert "`forerun models pull acme/tiny` resumes the download" in caught.value.hint


@pytest.mark.usefixtures("entry")
def test_a_name_of_the_hub_that_was_not_pulled() -> None:
    with pytest.raises(ModelError, match=r"Qwen/Qwen3\.5-0\.8B was not pulled") as caught:
        catalogue.locate("Qwen/Qwen3.5-0.8B")
    assert "`forerun models pull Qwen/Qwen3.5-0.8B`" in caught.value.hint


@pytest.mark.usefixtures("entry")
@pytest.mark.parametrize("model", ["./acme/none", "../none", "/none/at/all", "none"])
def test_a_folder_that_is_not_there(model: str) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        catalogue.locate(model)


def test_a_forgotten_model_is_not_found(entry: PulledModel) -> None:
    catalogue.forget("acme/tiny")
    assert catalogue.pulled() == []
    with pytest.raises(ModelError, match="was not pulled"):
        catalogue.locate("acme/tiny")

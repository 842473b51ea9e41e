"""The models that were pulled, with their commits: one small JSON file per model. The weights are in the hub's own cache.

Knows files and names; needs neither network nor huggingface_hub, so that a server starts offline.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from forerun import small_files
from forerun.config import cache_home
from forerun.errors import ModelError
from forerun.text.files import read_object

REPO = re.compile(r"[\w.-]+/[\w.-]+")
NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # old models of the hub have no owner


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model at one commit. revision: as requested (a branch, a tag); files: name and bytes of each that serving needs."""

    repo: str
    revision: str
    commit: str
    folder: Path
    pulled_at: str
    files: dict[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.files.values())

    @property
    def missing(self) -> list[str]:
        """Files that are missing or have another size."""
        paths = {name: self.folder / name for name in self.files}
        return [name for name, path in paths.items() if not path.is_file() or path.stat().st_size != self.files[name]]


class ModelLocation(NamedTuple):
    """A model's name and folder."""

    name: str
    folder: Path


def pulled() -> list[PulledModel]:
    """All pulled models, by name."""
    return [_read(path) for path in sorted(_folder().glob("*.json"))]


def find(repo: str) -> PulledModel:
    """The model of that name. Raises ModelError with the command that pulls it, if the name is valid."""
    if not NAME.fullmatch(repo):
        raise ModelError(f"{repo!r} is no model's name on the hub", hint="`forerun models ls` lists what was pulled")
    if not _path(repo).is_file():
        raise ModelError(f"{repo} was not pulled", hint=f"`forerun models pull {repo}` fetches it from the hub")
    return _read(_path(repo))


def locate(model: str) -> ModelLocation:
    """The folder (or the one file) of a model given by its path or by the name of a pulled one. Raises ModelError."""
    if Path(model).exists():
        return ModelLocation(Path(model).name, Path(model))
    if not _path(model).is_file() and (not REPO.fullmatch(model) or model.startswith(".")):
        raise ModelError(f"no such folder: {model}", hint="give a model's folder, or the name of a pulled one: `forerun models ls`")
    entry = find(model)
    if entry.missing:
        raise ModelError(f"{model} is not complete: {', '.join(entry.missing)}", hint=f"`forerun models pull {model}` resumes the download")
    return ModelLocation(model, entry.folder)


def remember(entry: PulledModel) -> None:
    """Store the entry, replacing one of the same name."""
    small_files.put(_path(entry.repo), json.dumps(asdict(entry) | {"folder": str(entry.folder)}, indent=1) + "\n")


def forget(repo: str) -> None:
    """Remove the entry; leaves the files."""
    _path(repo).unlink()


def _folder() -> Path:
    return cache_home() / "models"


def _path(repo: str) -> Path:
    return _folder() / f"{repo.replace('/', '--')}.json"


def _read(path: Path) -> PulledModel:
    try:
        entry = PulledModel(**read_object(path))
    except TypeError as error:
        raise ModelError(f"{path} is not what `forerun models pull` writes: {error}", hint="remove it, and pull the model again") from error
    return replace(entry, folder=Path(entry.folder))

"""What was pulled, and at which commit: one small JSON file a model. The weights themselves lie in the hub's own cache, shared with others.

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
    """A model at one commit. revision: what was asked for (a branch, a tag); files: name and bytes of each that serving needs."""

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
        """Files that are not there, or not in their size."""
        paths = {name: self.folder / name for name in self.files}
        return [name for name, path in paths.items() if not path.is_file() or path.stat().st_size != self.files[name]]


class ModelLocation(NamedTuple):
    """Where a model is, and how it is called."""

    name: str
    folder: Path


def pulled() -> list[PulledModel]:
    """All that was pulled, by name."""
    return [_read(path) for path in sorted(_folder().glob("*.json"))]


def find(repo: str) -> PulledModel:
    """The model of that name. Raises ModelError with the command that gets it, if it can be such a name."""
    if not NAME.fullmatch(repo):
        raise ModelError(f"{repo!r} is no model's name on the hub", hint="`forerun models ls` lists what was pulled")
    if not _path(repo).is_file():
        raise ModelError(f"{repo} was not pulled", hint=f"`forerun models pull {repo}` fetches it from the hub")
    return _read(_path(repo))


def locate(model: str) -> ModelLocation:
    """The folder (or the one file) of a model that is given as such, or as the name of one that was pulled. Raises ModelError."""
    if Path(model).exists():
        return ModelLocation(Path(model).name, Path(model))
    if not _path(model).is_file() and (not REPO.fullmatch(model) or model.startswith(".")):
        raise ModelError(f"no such folder: {model}", hint="give a model's folder, or the name of one that was pulled: `forerun models ls`")
    entry = find(model)
    if entry.missing:
        raise ModelError(f"{model} is not complete: {', '.join(entry.missing)}", hint=f"`forerun models pull {model}` goes on with it")
    return ModelLocation(model, entry.folder)


def remember(entry: PulledModel) -> None:
    """Write it down, in place of what was known of that name."""
    small_files.put(_path(entry.repo), json.dumps(asdict(entry) | {"folder": str(entry.folder)}, indent=1) + "\n")


def forget(repo: str) -> None:
    """The opposite of `remember`; leaves the files."""
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

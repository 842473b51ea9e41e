"""Pull a model from the hub: choose files, check the disk, download all of them at one commit, and add it to the catalogue.

Uses huggingface_hub for names, revisions, tokens and its cache (HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE are its settings).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from huggingface_hub import (
    DryRunFileInfo,
    HfApi,
    constants,
    get_cached_repo_tree,
    hf_hub_url,
    is_offline_mode,
    scan_cache_dir,
    snapshot_download,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from forerun.errors import ForerunError, ModelError
from forerun.hub import catalogue
from forerun.hub.catalogue import PulledModel
from forerun.hub.fetch import Source, fetch
from forerun.machine import free_bytes
from forerun.network import check_proxies, proxies

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "merges.txt")
# All files that serving reads. Other folders hold the same weights for other programs; only `mtp/` is a draft head's.
NEEDED = re.compile(
    r"(model|mtp|[^/]*[-_.]mtp)[^/]*\.safetensors(\.index\.json)?|mtp/(weights|model)\.safetensors|"
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|chat_template|vocab)\.json|"
    r"chat_template\.jinja|merges\.txt"
)
# The hub serves larger ones over its own protocol only (huggingface_hub, constants.MAX_HTTP_DOWNLOAD_SIZE).
HTTP_LIMIT_BYTES = 50 * 10**9
# OSError and the base of all errors of the HTTP library that this version of huggingface_hub uses; two that are neither.
HUB_ERRORS: tuple[type[Exception], ...] = (
    *cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__),
    HFValidationError,
    CachedRepoTreeNotFoundError,
)

Progress = Callable[[int, int], None]


def pull(repo: str, revision: str, progress: Progress) -> PulledModel:
    """Pull the model completely and add it to the catalogue. progress: called with bytes present and total bytes.

    Resumes an earlier call. Offline it uses the cache. Raises ModelError or ForerunError with a hint.
    """
    disable_progress_bars()
    entry = _cached(repo, revision) if is_offline_mode() else _fetched(repo, revision, progress)
    catalogue.remember(entry)
    return entry


def remove(repo: str) -> int:
    """Remove the model and its files, except those that another commit in the cache shares. Returns the freed bytes."""
    entry = catalogue.find(repo)
    catalogue.forget(repo)
    freed = 0
    for part in (_storage(repo) / "blobs").glob("*.forerun-part"):
        freed += part.stat().st_size
        part.unlink()
    if entry.folder.is_dir():
        plan = scan_cache_dir().delete_revisions(entry.commit)
        plan.execute()
        freed += plan.expected_freed_size
    return freed


def _fetched(repo: str, revision: str, progress: Progress) -> PulledModel:
    check_proxies()
    with _explained(repo, revision):
        listed = snapshot_download(repo, revision=revision, allow_patterns=list(PATTERNS), dry_run=True)
    infos = [info for info in listed if NEEDED.fullmatch(info.filename)]
    if not any(info.filename.endswith(".safetensors") for info in infos):
        raise ModelError(f"{repo} at {revision} has no safetensors weights", hint="look for a repository of the model that has")
    entry = _entry(repo, revision, infos[0].commit_hash, {info.filename: info.file_size or 0 for info in infos})
    if not _is_complete(repo):
        # So that `ls` shows and `rm` removes a partial download; a complete older commit stays in use until this one is complete.
        catalogue.remember(entry)
    _check_disk(entry, infos)
    _fetch_large(entry, [info.filename for info in infos if info.will_download], progress)
    with _explained(repo, revision):
        snapshot_download(repo, revision=entry.commit, allow_patterns=list(entry.files))
    return entry


def _cached(repo: str, revision: str) -> PulledModel:
    with _explained(repo, revision):
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=["config.json"], local_files_only=True))
        tree = get_cached_repo_tree(repo, revision=folder.name)
    entry = _entry(repo, revision, folder.name, {file.path: file.size for file in tree if NEEDED.fullmatch(file.path)})
    if entry.missing:
        raise ModelError(f"the cache lacks {', '.join(entry.missing)} of {repo}, and HF_HUB_OFFLINE is set", hint="pull once online")
    return entry


def _entry(repo: str, revision: str, commit: str, files: Mapping[str, int]) -> PulledModel:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return PulledModel(repo, revision, commit, _storage(repo) / "snapshots" / commit, now, dict(sorted(files.items())))


def _is_complete(repo: str) -> bool:
    return any(entry.repo == repo and not entry.missing for entry in catalogue.pulled())


def _check_disk(entry: PulledModel, infos: Sequence[DryRunFileInfo]) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    begun = sum(part.stat().st_size for part in (_storage(entry.repo) / "blobs").glob("*.forerun-part"))
    needed = sum(info.file_size or 0 for info in infos if info.will_download) - begun
    free = free_bytes(cache)
    if needed > free:
        raise ForerunError(
            f"{entry.repo} needs {needed / 1e9:,.1f} GB more, and {cache} has {free / 1e9:,.1f} GB free",
            hint="free some space, or name a folder on another disk in HF_HUB_CACHE",
        )


def _fetch_large(entry: PulledModel, names: list[str], progress: Progress) -> None:
    """Download the large files among `names` to where huggingface_hub looks before it downloads."""
    have = entry.num_bytes - sum(entry.files[name] for name in names)
    with _explained(entry.repo, entry.revision):
        infos = HfApi().get_paths_info(entry.repo, names, revision=entry.commit) if names else []
    for info in infos:
        if isinstance(info, RepoFile) and info.lfs and info.size <= HTTP_LIMIT_BYTES:
            url = hf_hub_url(entry.repo, info.path, revision=entry.commit)
            source = Source(url, build_hf_headers(), info.size, info.lfs.sha256)
            target = _storage(entry.repo) / "blobs" / info.lfs.sha256
            fetch(source, target, _after(have, entry.num_bytes, progress))
            have += info.size


def _after(have: int, total: int, progress: Progress) -> Callable[[int], None]:
    """Reports the bytes present of one file as bytes of all files."""
    return lambda done: progress(have + done, total)


def _storage(repo: str) -> Path:
    """The hub's cache folder of a repository (its documentation, "Understand caching")."""
    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """Convert the library's errors to ModelError."""
    try:
        yield
    except HUB_ERRORS as error:
        reason = error.__cause__ if isinstance(error, DryRunError) and error.__cause__ else error
        message, hint = _explanation(repo, revision, reason)
        raise ModelError(message, hint=hint) from error


def _explanation(repo: str, revision: str, reason: BaseException) -> tuple[str, str]:
    terms = f"accept its terms at {constants.ENDPOINT}/{repo}, then `hf auth login` or set HF_TOKEN"
    explanations = {
        GatedRepoError: (f"{repo} is gated: its owners require a login", terms),
        RevisionNotFoundError: (f"{repo} has no revision {revision!r}", "leave --revision out for its newest state"),
        RepositoryNotFoundError: (f"the hub has no model {repo}", "check the spelling; a private one needs HF_TOKEN"),
        HFValidationError: (f"{repo!r} cannot be the name of a model", "names are like Qwen/Qwen3.5-0.8B"),
        LocalEntryNotFoundError: (f"{repo} at {revision} is not in the cache, and HF_HUB_OFFLINE is set", "pull once online"),
        CachedRepoTreeNotFoundError: (f"the file list of {repo} is not in the cache, and HF_HUB_OFFLINE is set", "pull once online"),
    }
    via = f" ({proxies()})" if proxies() else ""
    unknown = f"{constants.ENDPOINT} cannot be queried for {repo}: {reason}", f"check the network connection{via}"
    return next((words for kind, words in explanations.items() if isinstance(reason, kind)), unknown)

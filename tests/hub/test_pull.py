"""Pulling from a hub that answers, breaks off, refuses and sends wrong data; each command in its own process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.fake_hub import REPO, Hub, serving
from tests.waiting import LIMIT_S

from forerun.models.load import DEMO_MODEL

OLD, NEW = "a" * 40, "b" * 40
WEIGHTS = random.Random(0).randbytes(3_000_000)
FILES = {
    "config.json": b'{"model_type": "qwen3_5"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00001.safetensors": WEIGHTS,
    "mtp.safetensors": WEIGHTS[:1000],
}
NOT_NEEDED = {"README.md": b"# Tiny", "original/model.safetensors": WEIGHTS[1:], "model.gguf": b"GGUF", "training_args.json": b"{}"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({OLD: FILES | NOT_NEEDED, NEW: FILES | {"config.json": b"{}"}}, {"main": OLD, "next": NEW})) as hub:
        yield hub


def pulled(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_pull_fetches_what_serving_needs_at_one_commit(hub: Hub, tmp_path: Path) -> None:
    entry = pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json", HF_TOKEN="secret"))
    assert hub.tokens == {"hub": {"Bearer secret"}, "cdn": {""}}, "the token is for the hub alone"
    assert (entry["repo"], entry["revision"], entry["commit"], entry["missing"]) == (REPO, "main", OLD, [])
    folder = Path(entry["folder"])
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES
    hub.branches["main"] = NEW
    listed = hub.forerun(tmp_path, "models", "ls").stdout.splitlines()
    assert listed[1].split()[:5] == [REPO, "main", OLD[:12], "3.0", "MB"]
    assert pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--revision", "next", "--json"))["commit"] == NEW
    assert hub.sent_bytes == 3_001_000, "the weights are the same, and were not fetched again"


def test_a_cut_connection_is_resumed(hub: Hub, tmp_path: Path) -> None:
    hub.cut_at = [1_000_000, 2_500_000]
    entry = pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    assert (Path(entry["folder"]) / "model-00001-of-00001.safetensors").read_bytes() == WEIGHTS
    assert [requested for requested in hub.ranges if requested] == ["bytes=1000000-", "bytes=2500000-"]
    assert hub.sent_bytes == 3_001_000


def test_another_process_resumes_where_one_gave_up(hub: Hub, tmp_path: Path) -> None:
    hub.cut_at, hub.refuse = [2_000_000], 403
    ran = hub.forerun(tmp_path, "models", "pull", REPO)
    assert ran.returncode == 1
    assert "HTTP 403 to a request for bytes from 2,000,000" in ran.stderr
    assert "pull again to resume" in ran.stderr
    hub.refuse = 0
    entry = pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    assert (Path(entry["folder"]) / "model-00001-of-00001.safetensors").read_bytes() == WEIGHTS
    assert hub.sent_bytes == 3_001_000
    assert list((tmp_path / "hf").rglob("*part")) == []


def test_another_process_resumes_where_one_was_killed(hub: Hub, tmp_path: Path) -> None:
    hub.cut_at, hub.stall = [2_000_000], threading.Event()
    with subprocess.Popen(hub.command("models", "pull", REPO), env=hub.environ(tmp_path)) as process:
        while sum(part.stat().st_size for part in (tmp_path / "hf").rglob("*part")) < 2_000_000 - 8192:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    hub.stall.set()
    entry = pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    assert (Path(entry["folder"]) / "model-00001-of-00001.safetensors").read_bytes() == WEIGHTS
    assert hub.sent_bytes <= 3_001_000 + 8192, "but for what the killed process had not yet written"


def test_a_pulled_model_is_served_by_its_name(hub: Hub, tmp_path: Path) -> None:
    hub.commits[OLD] = {path.name: path.read_bytes() for path in DEMO_MODEL.iterdir()}
    pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    hub.url = "http://127.0.0.1:9"
    command = hub.command("serve", REPO, "--port", "0", "--json", "--bank-disk-bytes", "0", "--eager")
    with subprocess.Popen(command, env=hub.environ(tmp_path), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            started = json.loads(server.stdout.readline())
            assert (started["model"], started["family"], started["demo"]) == (REPO, "qwen3_5", False)
            assert [model["id"] for model in httpx.get(started["url"] + "/v1/models", timeout=LIMIT_S).json()["data"]] == [REPO]
        finally:
            server.kill()


def test_content_with_a_wrong_checksum_is_removed(hub: Hub, tmp_path: Path) -> None:
    hub.damaged = True
    ran = hub.forerun(tmp_path, "models", "pull", REPO)
    assert (ran.returncode, "does not match the hub's checksum" in ran.stderr) == (1, True)
    hub.damaged = False
    assert pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))["missing"] == []


def test_a_disk_that_is_too_small_is_detected_before_the_download(hub: Hub, tmp_path: Path) -> None:
    hub.sizes["mtp.safetensors"] = 10**16
    ran = hub.forerun(tmp_path, "models", "pull", REPO)
    assert ran.returncode == 1
    assert f"{REPO} needs 10,000,000.0 GB more, and {tmp_path / 'hf' / 'hub'} has " in ran.stderr
    assert "HF_HUB_CACHE" in ran.stderr
    assert hub.sent_bytes == 0


def test_removed(hub: Hub, tmp_path: Path) -> None:
    entry = pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    removed = json.loads(hub.forerun(tmp_path, "models", "rm", REPO, "--json").stdout)
    assert removed["freed_bytes"] == entry["bytes"]
    assert not Path(entry["folder"]).exists()
    ran = hub.forerun(tmp_path, "models", "rm", REPO)
    assert (ran.returncode, f"{REPO} was not pulled" in ran.stderr) == (1, True)


def test_a_partial_download_is_removed_too(hub: Hub, tmp_path: Path) -> None:
    hub.cut_at, hub.refuse = [2_000_000], 403
    hub.forerun(tmp_path, "models", "pull", REPO)
    assert "not complete" in hub.forerun(tmp_path, "models", "ls").stdout
    assert json.loads(hub.forerun(tmp_path, "models", "rm", REPO, "--json").stdout)["freed_bytes"] == 2_000_000
    assert list((tmp_path / "hf").rglob("*part")) == []


def test_a_pulled_model_is_available_offline(hub: Hub, tmp_path: Path) -> None:
    pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json"))
    hub.url = "http://127.0.0.1:9"
    assert pulled(hub.forerun(tmp_path, "models", "pull", REPO, "--json", HF_HUB_OFFLINE="1"))["commit"] == OLD
    ran = hub.forerun(tmp_path, "models", "pull", REPO)
    assert (ran.returncode, "http://127.0.0.1:9 cannot be queried" in ran.stderr) == (1, True)
    ran = hub.forerun(tmp_path, "models", "pull", "acme/other", HF_HUB_OFFLINE="1")
    assert (ran.returncode, "acme/other at main is not in the cache, and HF_HUB_OFFLINE is set" in ran.stderr) == (1, True)


def test_missing_models_and_revisions(hub: Hub, tmp_path: Path) -> None:
    hub.commits["c" * 40], hub.branches["gguf"] = {"config.json": b"{}"}, "c" * 40
    requested = [("acme/none", "main"), (REPO, "v9"), ("a/b/c", "main"), (REPO, "gguf"), ("acme/gated", "main")]
    ran = subprocess.run(
        [sys.executable, "-c", COMPLAINTS, json.dumps(requested)], env=hub.environ(tmp_path), capture_output=True, check=True
    )
    assert json.loads(ran.stdout) == [
        ["the hub has no model acme/none", "check the spelling; a private one needs HF_TOKEN"],
        [f"{REPO} has no revision 'v9'", "leave --revision out for its newest state"],
        ["'a/b/c' cannot be the name of a model", "names are like Qwen/Qwen3.5-0.8B"],
        [f"{REPO} at gguf has no safetensors weights", "look for a repository of the model that has"],
        [
            "acme/gated is gated: its owners require a login",
            f"accept its terms at {hub.url}/acme/gated, then `hf auth login` or set HF_TOKEN",
        ],
    ]


COMPLAINTS = """
import json, sys
from forerun.errors import ModelError
from forerun.hub.pull import pull

def complaint(repo, revision):
    try:
        pull(repo, revision, lambda done, total: None)
    except ModelError as error:
        return str(error), error.hint

print(json.dumps([complaint(*requested) for requested in json.loads(sys.argv[1])]))
"""

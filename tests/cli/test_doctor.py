"""`forerun doctor`: as a program on a machine that is well; and what it makes of settings that cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from forerun.cli import doctor as module
from forerun.config import environ_without_settings
from forerun.doctor.finding import ok


def examined(tmp_path: Path, **settings: object) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by name."""
    environment = environ_without_settings() | {f"FORERUN_{name.upper()}": str(value) for name, value in settings.items()}
    environment.setdefault("FORERUN_BANK_DIR", str(tmp_path / "bank"))
    command = [sys.executable, "-m", "forerun.cli", "doctor", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ran.stdout, ran.stderr
    output = json.loads(ran.stdout)
    return ran.returncode, {finding["name"]: finding for finding in output["findings"]} | {"status": output["status"]}


def test_everything_works(tmp_path: Path) -> None:
    code, found = examined(tmp_path, port=0)
    names = [
        "versions",
        "system",
        "settings",
        "port",
        "bank",
        "compiler",
        "memory",
        "disk",
        "mlx",
        "cpu",
        "kernels",
        "model",
        "restore",
    ]
    assert list(found) == [*names, "status"]
    assert (code, found["status"]) == (0, max((found[name]["status"] for name in names), key=["ok", "warning"].index)), found
    assert [found[name]["status"] for name in ("settings", "port", "bank", "mlx", "kernels", "model", "restore")] == ["ok"] * 7
    assert all(bool(found[name]["remedy"]) == (found[name]["status"] != "ok") for name in names)
    assert not list(tmp_path.iterdir()), "looking leaves nothing behind"


def test_invalid_settings_are_a_finding_and_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("prot = 1\n")
    monkeypatch.setenv("FORERUN_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(module, "_on_device", lambda config: [ok("restore", f"drafts {config.draft_depth}")])
    found = {finding.name: finding for finding in module.findings()}
    assert found["settings"].status == "failure"
    assert "did you mean 'port'?" in found["settings"].remedy
    assert found["restore"].text == "drafts auto"

"""What the build hook installs with a compiler, without one, and after a failure. CMake is a script here; .ci/run builds in earnest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the environment is older than the build hook: make test installs it")

from tools import build_extension

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is built elsewhere")
WORKS = 'case $* in *--install*) mkdir -p "$4/forerun"; echo module > "$4/forerun/_cpu.x.so";; esac'
FAILS = 'printf "%s\\n" "-- a check" "CMake Error at CMakeLists.txt:13 (find_package):" "  Could NOT find Python" "-- more"; exit 1'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that programs are searched in, but for what scripts need."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    return folder


def add(folder: Path, name: str, script: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)


def built(tmp_path: Path) -> tuple[dict[str, str], list[str]]:
    """Contents by name, and the warnings."""
    warnings = list[str]()
    files = build_extension.result(tmp_path, tmp_path, warnings.append)
    return {name: path.read_text().strip() for name, path in files.items()}, warnings


def test_no_compiler(programs: Path, tmp_path: Path) -> None:
    reason = "there was no C++ compiler"
    assert built(tmp_path) == ({build_extension.NOT_BUILT: reason}, [f"installed without the CPU kernels: {reason}"])


def test_a_build(programs: Path, tmp_path: Path) -> None:
    add(programs, "g++")
    add(programs, "cmake", WORKS)
    assert built(tmp_path) == ({"_cpu.x.so": "module"}, [])


def test_a_build_that_fails_reports_the_first_error(programs: Path, tmp_path: Path) -> None:
    add(programs, "c++")
    add(programs, "cmake", FAILS)
    files, warnings = built(tmp_path)
    assert files == {build_extension.NOT_BUILT: "the build failed: CMake Error at CMakeLists.txt:13 (find_package): Could NOT find Python"}
    assert len(warnings) == 1


def test_a_missing_program(programs: Path, tmp_path: Path) -> None:
    add(programs, "clang++")
    assert built(tmp_path)[0] == {build_extension.NOT_BUILT: "cmake: No such file or directory"}


def test_the_result_of_an_earlier_build_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kernels" / "cpu").mkdir(parents=True)
    new = tmp_path / "new"
    new.write_text("new")
    build_extension.put(tmp_path, {"_cpu.a.so": new})
    build_extension.put(tmp_path, {build_extension.NOT_BUILT: new})
    assert not (tmp_path / "_cpu.a.so").exists()
    assert (tmp_path / build_extension.NOT_BUILT).read_text() == "new"
    build_extension.put(tmp_path, {"_cpu.b.so": new})
    assert (tmp_path / "_cpu.b.so").exists()
    assert not (tmp_path / build_extension.NOT_BUILT).exists()

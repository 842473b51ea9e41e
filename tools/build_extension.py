"""Hatchling's hook that builds the CPU kernels (docs/cpu.md): into the wheel or, for an editable install, into `src/forerun`.

Where they cannot be built, the package is installed without them, and NOT_BUILT in it says why (`forerun doctor` shows it).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "_cpu*.so"
NOT_BUILT = "kernels/cpu/not_built.txt"
TOOLS = ("nanobind==3.1.0", "cmake>=3.25", "ninja>=1.11")  # nanobind 3.1.0 has the internals of MLX 0.32.4's (version 22)


class NotBuiltError(Exception):
    """The kernels cannot be built here."""


class ExtensionHook(BuildHookInterface[Any]):
    """Runs for wheels only: a source distribution holds the sources."""

    def dependencies(self) -> list[str]:
        """What the build needs, nothing where it cannot begin. Its MLX is that of the extra [cpu]."""
        try:
            require_compiler()
        except NotBuiltError:
            return []
        return [*self.metadata.core.optional_dependencies["cpu"], *TOOLS]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build. version: "standard" or "editable"."""
        self.folder = tempfile.TemporaryDirectory()
        built = result(Path(self.root), Path(self.folder.name), self.app.display_warning)
        package = Path(self.root, "src", "forerun")
        if version == "editable":
            put(package, built)
            return
        build_data["force_include"] |= {str(path): f"forerun/{name}" for name, path in built.items()}
        if NOT_BUILT not in built:
            build_data |= {"pure_python": False, "infer_tag": True}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built: it is in the wheel."""
        self.folder.cleanup()


def result(root: Path, folder: Path, warn: Any) -> dict[str, Path]:
    """The module built in `folder`, or the file with the reason why not, by its path within the package."""
    try:
        require_compiler()
        module = build(root, folder)
    except NotBuiltError as error:
        warn(f"installed without the CPU kernels: {error}")
        reason = folder / "reason"
        reason.write_text(f"{error}\n")
        return {NOT_BUILT: reason}
    return {module.name: module}


def put(package: Path, built: dict[str, Path]) -> None:
    """Copy the files into the source tree in place of those of an earlier build, which may not fit the sources any more."""
    for old in (*package.glob(MODULE), package / NOT_BUILT):
        old.unlink(missing_ok=True)
    for name, path in built.items():
        shutil.copy(path, package / name)


def require_compiler() -> None:
    """Raise NotBuiltError where no build can begin."""
    if sys.platform != "linux":
        raise NotBuiltError("they are built on Linux only")
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        raise NotBuiltError("there was no C++ compiler")


def build(root: Path, folder: Path) -> Path:
    """The module, built in `folder` by CMake. Raises NotBuiltError with the first error that CMake or the compiler reports."""
    build_folder, prefix = str(folder / "build"), str(folder / "install")
    for command in (
        ["cmake", "-S", str(root), "-B", build_folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", build_folder],
        ["cmake", "--install", build_folder, "--prefix", prefix, "--strip"],
    ):
        run(command)
    (module,) = Path(prefix, "forerun").glob(MODULE)
    return module


def run(command: list[str]) -> None:
    """Raises NotBuiltError if the command fails."""
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise NotBuiltError(f"{command[0]}: {error.strerror}") from error
    print(ran.stdout)
    if ran.returncode:
        raise NotBuiltError(f"the build failed: {first_error(ran.stdout)}")


def first_error(output: str) -> str:
    """The first paragraph that begins with or contains "error", in one line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n(?=\S)", output)]
    return next((each for each in paragraphs if re.search(r"\berror\b", each, re.IGNORECASE)), paragraphs[-1])[:300]

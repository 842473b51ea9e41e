"""CUDA sources run on the CPU, see cuda_on_cpu.h."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import forerun.kernels

KERNELS = Path(forerun.kernels.__file__).parent


def body(name: str) -> str:
    """The source of a kernel, for a function with its arrays and constants in scope."""
    return (KERNELS / f"{name}.cu").read_text()


def written(constants: Mapping[str, int]) -> str:
    """Constants in the form that MLX puts before a body."""
    return "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())


def compiled(folder: Path, source: str) -> ctypes.CDLL:
    """The source as a library for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    (folder / "source.cpp").write_text('#include "cuda_on_cpu.h"\n' + source)
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent}"]
    subprocess.run(["g++", *options, "-o", str(folder / "source.so"), str(folder / "source.cpp")], check=True)
    return ctypes.CDLL(str(folder / "source.so"))


def bits(array: mx.array) -> np.ndarray:
    """The array as the kernels read it, bfloat16 as uint16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, order="C")


def floats(array: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 as float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [a.ctypes.data_as(ctypes.c_void_p) for a in arrays]

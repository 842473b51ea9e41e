"""Products with GGUF's blocks have the bits of products with the float32 matrix that the array operations make of them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels.cpu.cases import matrix, on_every_set

from forerun.kernels.blocks import FORMATS, random_blocks

_cpu: Any = pytest.importorskip("forerun._cpu")

formats = pytest.mark.parametrize("name", FORMATS)


@formats
def test_dequantised(name: str) -> None:
    blocks = random_blocks(name, 5, 1024)
    expected = np.array(FORMATS[name].dequantise(blocks))
    for weights in on_every_set(lambda: _cpu.block_dequantise(blocks, name)):
        np.testing.assert_array_equal(weights, expected)


@formats
def test_rows(name: str) -> None:
    blocks, ids = random_blocks(name, 5, 256), mx.array([4, 0, 4])
    expected = np.array(FORMATS[name].dequantise(blocks))[[4, 0, 4]]
    for rows in on_every_set(lambda: _cpu.block_rows(blocks, ids, name)):
        np.testing.assert_array_equal(rows, expected)


@formats
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 6, 30])
def test_products(name: str, rows: int) -> None:
    x, blocks = matrix(rows, 768), random_blocks(name, 70, 768)
    expected = np.array(_cpu.linear(x, FORMATS[name].dequantise(blocks)))
    for y in on_every_set(lambda: _cpu.block_linear(x, blocks, name)):
        np.testing.assert_array_equal(y, expected)


def test_wrong_arguments() -> None:
    x, blocks = mx.zeros((2, 32)), random_blocks("q8_0", 4, 64)
    for call in (
        lambda: _cpu.block_linear(x, blocks, "q8_0"),
        lambda: _cpu.block_linear(x, blocks, "q9_0"),
        lambda: _cpu.block_dequantise(blocks[:, 1:], "q8_0"),
    ):
        with pytest.raises(ValueError, match="block"):
            call()

"""All arrays of a model are evaluated on load. Otherwise each run of the first compiled step computes them, and a step traced after their
evaluation has other kernels, for which a request waits seconds on a GPU.
"""

from __future__ import annotations

import io

import mlx.core as mx
import pytest
from benchmarks.on_gpu.shapes import arrays_of
from tests import families, tiny
from tests.families import LLAMA
from tests.models.test_llama import LLAMA3


def is_computed(array: mx.array) -> bool:
    graph = io.StringIO()
    mx.export_to_dot(graph, array)
    return "->" not in graph.getvalue()


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "quantised"])
@pytest.mark.parametrize("kind", sorted(families.CONFIGS))
def test_all_arrays_of_a_model_are_evaluated(kind: str, is_packed: bool) -> None:
    config, tensors = families.CONFIGS[kind], families.tensors(kind)
    mx.eval(tensors)
    if is_packed:
        config, tensors = families.quantised(config, tensors)
    held = list(arrays_of(vars(families.built(config, tensors, is_dense=False))))
    assert len(held) > 10
    assert [(array.shape, array.dtype) for array in held if not is_computed(array)] == []


def test_scaled_periods_are_evaluated() -> None:
    (periods,) = arrays_of(families.built(LLAMA | {"rope_scaling": LLAMA3}, families.tensors("llama")).config)
    assert is_computed(periods)


def test_an_unevaluated_array_is_detected() -> None:
    assert not is_computed(mx.exp(tiny.family().head(mx.zeros((1, tiny.HIDDEN)))))

"""What a model holds is computed when it is loaded. Else the first compiled step computes it each time, and one that is traced after it was
computed is made of other kernels, for which a request waits seconds on a GPU.
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
def test_nothing_that_a_model_holds_is_left_to_be_computed(kind: str, is_packed: bool) -> None:
    config, tensors = families.CONFIGS[kind], families.tensors(kind)
    mx.eval(tensors)
    if is_packed:
        config, tensors = families.quantised(config, tensors)
    held = list(arrays_of(vars(families.built(config, tensors, is_dense=False))))
    assert len(held) > 10
    assert [(array.shape, array.dtype) for array in held if not is_computed(array)] == []


def test_stretched_periods_are_computed() -> None:
    (periods,) = arrays_of(families.built(LLAMA | {"rope_scaling": LLAMA3}, families.tensors("llama")).config)
    assert is_computed(periods)


def test_what_is_not_computed_is_seen() -> None:
    assert not is_computed(mx.exp(tiny.family().head(mx.zeros((1, tiny.HIDDEN)))))

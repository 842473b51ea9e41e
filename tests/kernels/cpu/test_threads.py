"""Threads of the CPU extension: jobs of changing size one after the other, each by all threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 90
PRODUCTS = f"""
import random, time
import mlx.core as mx
from forerun import _cpu
_cpu.set_num_threads(3)
x, order = mx.random.normal((1, 256)), random.Random(0)
weights = [mx.random.normal((n, 256)).astype(mx.bfloat16) for n in (512, 768, 1024, 3000, 8192)]
expected = [_cpu.linear(x, w) for w in weights]
mx.eval(expected)
end_s = time.monotonic() + {SECONDS}
while time.monotonic() < end_s:
    which = [order.randrange(len(weights)) for _ in range(200)]
    products = [_cpu.linear(x, weights[i]) for i in which]
    mx.eval(products)
    assert all(mx.array_equal(y, expected[i]) for y, i in zip(products, which, strict=True))
"""


@pytest.mark.long
def test_no_thread_works_on_the_next_job_before_it_is_complete() -> None:
    """A helper that came late once took a piece of a job that was being prepared: the process crashed after some 100,000 products."""
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True, timeout=SECONDS * 3)

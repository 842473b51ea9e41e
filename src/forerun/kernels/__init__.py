"""The operations that the model's speed and exactness stand on: pure functions of arrays, one operation a file, the reference first.

Knows nothing of models, caches or requests. "Row-invariant" below means: row i of the result has the same bits whatever other rows are
computed beside it. It holds for the `reference` functions if the BLAS is row-invariant (see blas.py).
"""

"""The operations that decide the model's speed and exactness: pure functions of arrays, one operation per file, the reference first.

Knows nothing of models, caches or requests. "Row-invariant" means: row i of the result has the same bits whatever other rows are computed
with it. It holds for `exact` numerics (numerics.py).
"""

"""The BLAS for MLX's fp32 products on a Linux CPU: finding and loading a fast one, and testing that it is row-invariant.

MLX's wheel links the reference BLAS (2-4 GFLOP/s). A system OpenBLAS, loaded with global symbols before the first `import mlx.core`, takes
over its `cblas_*` calls. With its Sandybridge kernels a row of a product has the same bits whatever the other rows; with the kernels that
OpenBLAS chooses by default on newer processors it does not. So `load` must run before anything imports mlx.core.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import sys
from pathlib import Path

from forerun.config import set_blas_core
from forerun.errors import UnsupportedError

ROW_INVARIANT_CORE = "Sandybridge"
MAX_RESULTS = 1 << 26
_CANDIDATES = (
    "/usr/lib/{machine}-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib/{machine}-linux-gnu/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib64/libopenblas.so.0",
    "/usr/lib/libopenblas.so.0",
)
INSTALL_HINT = "install a fast BLAS: `apt-get install libopenblas0-pthread` (Debian, Ubuntu) or `dnf install openblas-threads` (Fedora)"


def load(choice: str, *, row_invariant: bool) -> str:
    """Load the chosen BLAS for MLX and return its name. choice: "auto", "openblas" or "wheel". Raises UnsupportedError if it is missing."""
    if platform.system() != "Linux":
        return "Accelerate" if platform.system() == "Darwin" else "system"
    path = None if choice == "wheel" else find()
    if path is None:
        if choice == "openblas":
            raise UnsupportedError("no OpenBLAS on this machine", hint=INSTALL_HINT)
        return "reference BLAS of the MLX wheel (slow)"
    if "mlx.core" in sys.modules:
        raise RuntimeError("the BLAS must be loaded before mlx.core is imported")
    if row_invariant and platform.machine() == "x86_64":
        set_blas_core(ROW_INVARIANT_CORE)
    return _describe(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))


def prove_correct(name: str) -> None:
    """Check one product against float64. Raises UnsupportedError if it is wrong (a BLAS build for another processor)."""
    import mlx.core as mx
    import numpy as np

    a, b = mx.random.normal((160, 288), key=mx.random.key(0)), mx.random.normal((288, 192), key=mx.random.key(1))
    exact = np.array(a, dtype=np.float64) @ np.array(b, dtype=np.float64)
    worst = float(np.abs(np.array(a @ b) - exact).max())
    if not worst < 1e-3:
        raise UnsupportedError(f"{name} computes wrong products here (error {worst:.1e})", hint="set blas = 'wheel' (FORERUN_BLAS=wheel)")


def prove_row_invariant(name: str, shapes: set[tuple[int, int]]) -> None:
    """Check x @ W.T for every weight shape [out, in] in `shapes`: a row has the same bits with 1 to 1,024 rows. Else UnsupportedError.

    Fewer rows for an output head: it never sees a whole prompt, and the check would take minutes and gigabytes.
    """
    import mlx.core as mx

    for out, inner in sorted(shapes):
        max_rows = 1024 if out * 1024 <= MAX_RESULTS else max(64, MAX_RESULTS // out)
        x = mx.random.normal((max_rows, inner), key=mx.random.key(2))
        w = mx.random.normal((out, inner), key=mx.random.key(3))
        whole = x @ w.T
        for rows in (n for n in (1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 300, 512) if n < max_rows):
            if not mx.array_equal(whole[:rows], x[:rows] @ w.T) or not mx.array_equal(whole[max_rows - rows :], x[max_rows - rows :] @ w.T):
                raise UnsupportedError(
                    f"numerics 'exact' needs a row-invariant BLAS; {name} changes the bits of a row with the number of rows "
                    f"({rows} against {max_rows} rows, weight {out} x {inner})",
                    hint="use --numerics fast, or FORERUN_BLAS=wheel (slow, exact)",
                )


def find() -> Path | None:
    """The system's OpenBLAS, None if there is none."""
    paths = (Path(candidate.format(machine=platform.machine())) for candidate in _CANDIDATES)
    return next((path for path in paths if path.exists()), None)


def _describe(library: ctypes.CDLL) -> str:
    library.openblas_get_config.restype = ctypes.c_char_p
    library.openblas_get_corename.restype = ctypes.c_char_p
    version = library.openblas_get_config().decode().split()[1]
    return f"OpenBLAS {version} ({library.openblas_get_corename().decode()})"

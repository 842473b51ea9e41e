"""Tells running out of memory from other failures of a step. MLX has no exception of its own for it, only words.

Where the device is a CPU, MLX does not notice: the system ends the process, or gives memory that it does not have. Knows no request.
"""

from __future__ import annotations

import re

from forerun.errors import OutOfMemoryError

# Metal and CUDA allocators, Metal's command buffers, CUDA's runtime.
_WORDS = re.compile(r"unable to allocate|attempting to allocate|insufficient memory|out of memory", re.IGNORECASE)
HINT = "shorten the conversation, lower --bank-ram-bytes or --context, or end other programs that use the device"


def explained(error: Exception) -> Exception:
    """An OutOfMemoryError if that is what the exception tells of, else the exception itself."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _WORDS.search(str(error))):
        return OutOfMemoryError(f"there is not enough memory for this request: {error}", hint=HINT)
    return error

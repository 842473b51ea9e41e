"""Whether memory has room for a request, and whether a step that failed ran out of it.

MLX has no exception of its own for the latter, only words; and where the device is a CPU it does not notice: the system ends the process,
or gives memory that it does not have. So what does not fit is refused before it is read. Knows no request.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import mlx.core as mx
from rich.filesize import decimal

from forerun.bank.bank import Bank
from forerun.bank.live import LiveConversation
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.errors import OutOfMemoryError
from forerun.kernels.attention import SCORE_BYTES
from forerun.state.contiguous import capacity_for
from forerun.state.spec import StateSpec

# Metal and CUDA allocators, Metal's command buffers, CUDA's runtime.
_WORDS = re.compile(r"unable to allocate|attempting to allocate|insufficient memory|out of memory", re.IGNORECASE)
HINT = "shorten the conversation, lower --bank-ram-bytes or --context, or end other programs that use the device"
ADMIT_FRAC = 0.9  # of the device's memory
_SNAPSHOTS = 4  # of a turn
_SCORES_PER_KEY_BYTES = 128  # of a row: 32 heads of float32
_HIDDENS_PER_ROW = 256  # what a pass over a prompt holds for each of its rows, counted in hidden vectors


def needed_bytes(spec: StateSpec, tokens: int) -> int:
    """What a conversation of so many tokens takes: its cache, marks, and the pass over the last chunk of its prompt."""
    rows = min(tokens, CHUNK_TOKENS)
    pass_bytes = rows * _HIDDENS_PER_ROW * spec.hidden.num_bytes + min(2 * SCORE_BYTES, rows * tokens * _SCORES_PER_KEY_BYTES)
    return capacity_for(tokens) * spec.bytes_per_token + _SNAPSHOTS * spec.bytes_per_snapshot + pass_bytes


def free_memory_for(bank: Bank, spec: StateSpec, tokens: int, memory_bytes: int, own: Callable[[], LiveConversation | None]) -> None:
    """Let go of kept conversations as far as one of so many tokens needs it; of none if it would not fit even then: OutOfMemoryError.

    own: the live conversation in whose cache it will go on, which holds part of what it needs already.
    """
    most_bytes = int(memory_bytes * ADMIT_FRAC) - needed_bytes(spec, tokens)
    if mx.get_active_memory() + mx.get_cache_memory() <= most_bytes:
        return
    mx.clear_cache()
    live = own()
    own_bytes = live.num_bytes if live else 0
    most_bytes += own_bytes
    over_bytes = mx.get_active_memory() - most_bytes
    if 0 < over_bytes <= bank.stats.ram_bytes - own_bytes:
        bank.free(over_bytes, live)
        mx.clear_cache()
    if (held := mx.get_active_memory()) > most_bytes:
        needed, held_text, all_text = (decimal(n) for n in (needed_bytes(spec, tokens), held, memory_bytes))
        raise OutOfMemoryError(f"{tokens} tokens need {needed} of memory beside {held_text} in use, of {all_text}", hint=HINT)


def explained(error: Exception) -> Exception:
    """An OutOfMemoryError if that is what the exception tells of, else the exception itself."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _WORDS.search(str(error))):
        return OutOfMemoryError(f"there is not enough memory for this request: {error}", hint=HINT)
    return error

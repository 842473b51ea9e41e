"""Memory admission for requests, and recognition of a step that ran out of memory.

MLX raises a RuntimeError with a message in that case; on a CPU not even that: the system overcommits and then kills the process. So a
request that does not fit is refused before prefill. Knows no request.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import mlx.core as mx
from rich.filesize import decimal

from forerun import machine
from forerun.bank.bank import Bank
from forerun.bank.live import LiveConversation
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.errors import OutOfMemoryError
from forerun.kernels.attention import SCORE_BYTES
from forerun.kernels.buffers import release_buffers
from forerun.kernels.cuda_source import is_cuda
from forerun.state.contiguous import capacity_for
from forerun.state.spec import StateSpec

# Messages of Metal's and CUDA's allocators, Metal's command buffers, CUDA's runtime.
_MESSAGES = re.compile(r"unable to allocate|attempting to allocate|insufficient memory|out of memory", re.IGNORECASE)
HINT = "shorten the conversation, lower --bank-ram-bytes or --context, or end other programs that use the device"
ADMIT_FRAC = 0.9  # of the device's memory
_SNAPSHOTS = 4  # of a turn
_SCORES_PER_KEY_BYTES = 128  # of a row: 32 heads of float32
_HIDDENS_PER_ROW = 256  # memory of a prefill pass per row, in hidden vectors


def needed_bytes(spec: StateSpec, tokens: int) -> int:
    """Memory of a request with `tokens` of context: its cache, its snapshots, and the pass over the prompt's last chunk."""
    rows = min(tokens, CHUNK_TOKENS)
    pass_bytes = rows * _HIDDENS_PER_ROW * spec.hidden.num_bytes + min(2 * SCORE_BYTES, rows * tokens * _SCORES_PER_KEY_BYTES)
    return capacity_for(tokens) * spec.bytes_per_token + _SNAPSHOTS * spec.bytes_per_snapshot + pass_bytes


def usable_bytes(memory_bytes: int) -> int:
    """The device's `memory_bytes`, less what other programs have taken of it by now, where the device's memory is the machine's.

    Of what is returned ADMIT_FRAC is used, so the available memory counts in full.
    """
    if is_cuda():
        return memory_bytes
    own_bytes = mx.get_active_memory() + mx.get_cache_memory()
    return min(memory_bytes, int((own_bytes + machine.available_bytes()) / ADMIT_FRAC))


def growth_bytes(spec: StateSpec, tokens: int, held_bytes: int) -> int:
    """Memory that a running sequence of `held_bytes` is still promised, if it becomes `tokens` long."""
    return max(0, capacity_for(tokens) * spec.bytes_per_token + _SNAPSHOTS * spec.bytes_per_snapshot - held_bytes)


def free_memory_for(bank: Bank, spec: StateSpec, tokens: int, memory_bytes: int, own: Callable[[], LiveConversation | None]) -> None:
    """Evict live conversations until a request with `tokens` of context fits. Evicts none and raises OutOfMemoryError if it cannot fit.

    own: returns the live conversation whose cache the request will continue, which holds part of the memory it needs.
    """
    limit_bytes = int(memory_bytes * ADMIT_FRAC) - needed_bytes(spec, tokens)
    if mx.get_active_memory() + mx.get_cache_memory() <= limit_bytes:
        return
    bank.release_free_pages()
    release_buffers()
    live = own()
    own_bytes = live.num_bytes if live else 0
    limit_bytes += own_bytes
    excess_bytes = mx.get_active_memory() - limit_bytes
    if 0 < excess_bytes <= bank.stats.ram_bytes - own_bytes:
        bank.free(excess_bytes, [live] if live else [])
        release_buffers()
    if (used_bytes := mx.get_active_memory()) > limit_bytes:
        needed, used, total = (decimal(n) for n in (needed_bytes(spec, tokens), used_bytes, memory_bytes))
        raise OutOfMemoryError(f"{tokens} tokens need {needed} of memory, {used} of {total} are in use", hint=HINT)


def explain(error: Exception) -> Exception:
    """An OutOfMemoryError if the exception means that memory ran out, else the exception itself."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _MESSAGES.search(str(error))):
        return OutOfMemoryError(f"there is not enough memory for this request: {error}", hint=HINT)
    return error

"""The gated delta rule over whole sequences, in chunks of CHUNK tokens, with its gradient. Knows nothing of projections or norms.

Per head, with decay a_t = exp(g_t): S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, and o_t = S_t^T q_t (Yang, Kautz, Hatamizadeh,
"Gated Delta Networks", 2024, from which the letters are). Within a chunk the updates have a closed form with one triangular inverse;
between chunks the state follows S' = c S - M S + B. These two pieces are Triton kernels on a GPU and plain PyTorch elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

if torch.cuda.is_available():
    import deltanet_kernels as kernels

CHUNK = 64


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """o [batch, tokens, value_heads, dim] from an empty state; tokens must be a multiple of CHUNK.

    q, k [batch, tokens, key_heads, dim], of length one, q scaled. v [batch, tokens, value_heads, dim].
    g (logarithm of the decay), beta [batch, tokens, value_heads] in float32.
    """
    repeat = v.shape[2] // q.shape[2]
    q, k, v = _chunked(q).contiguous(), _chunked(k).contiguous(), _chunked(v)
    g, beta = _chunked(g[..., None])[..., 0].cumsum(-1), _chunked(beta[..., None])[..., 0]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], float("-inf")).exp()
    kk, qk = (pair.repeat_interleave(repeat, 1) for pair in (k @ k.mT, q @ k.mT))
    k, q = k.repeat_interleave(repeat, 1), q.repeat_interleave(repeat, 1)
    a = torch.where(lower.tril(-1), beta[..., None] * kk.float() * decay, 0.0)
    t = (inverse_of_one_plus(a) * beta[..., None, :]).to(v.dtype)
    u, w = t @ v, t @ (k * g.exp()[..., None]).to(v.dtype)
    states = _states_before_chunks(k, u, w, g)
    within = (qk.float() * decay).to(v.dtype)
    o = (q * g.exp()[..., None]).to(v.dtype) @ states + within @ (u - w @ states)
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2)


def _chunked(x: Tensor) -> Tensor:
    """[batch, tokens, heads, dim] as [batch, heads, chunks, CHUNK, dim]."""
    return x.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)


def _states_before_chunks(k: Tensor, u: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """The state [dim, dim] before each chunk; g is summed within its chunk."""
    last = g[..., -1:]
    kd = (k * (last - g).exp()[..., None]).to(u.dtype)
    states: Tensor = chunk_scan(last.exp().squeeze(-1).flatten(0, 1), (kd.mT @ w).flatten(0, 1), (kd.mT @ u).flatten(0, 1), False)
    return states.view(*u.shape[:3], *states.shape[-2:])


@torch.library.custom_op("forerun::inverse_of_one_plus", mutates_args=())
def inverse_of_one_plus(a: Tensor) -> Tensor:
    """(I + a)^-1 for strictly lower triangular a [..., CHUNK, CHUNK] in float32."""
    if a.is_cuda:
        return kernels.inverse_of_one_plus(a.contiguous())
    one = torch.eye(CHUNK, dtype=a.dtype, device=a.device)
    return torch.linalg.solve_triangular(a + one, one.expand_as(a).contiguous(), upper=False, unitriangular=True).contiguous()


@inverse_of_one_plus.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


def _keep_inverse(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _inverse_gradient(ctx: Any, gradient: Tensor) -> Tensor:
    (inverse,) = ctx.saved_tensors
    transposed = inverse.mT.to(torch.bfloat16) if inverse.is_cuda else inverse.mT
    return -(transposed @ gradient.to(transposed.dtype) @ transposed).float().tril(-1)


inverse_of_one_plus.register_autograd(_inverse_gradient, setup_context=_keep_inverse)


@torch.library.custom_op("forerun::chunk_scan", mutates_args=())
def chunk_scan(c: Tensor, m: Tensor, b: Tensor, is_reverse: bool) -> Tensor:
    """States before each chunk of S' = c S - m S + b, for c [sequences, chunks] and m, b [sequences, chunks, dim, dim].

    is_reverse walks the chunks backwards with m transposed: the recurrence of the gradient.
    """
    if m.is_cuda:
        return kernels.chunk_scan(c.contiguous(), m.contiguous(), b.contiguous(), is_reverse)
    states, state = torch.empty_like(b), torch.zeros_like(b[:, 0], dtype=torch.float32)
    for chunk in reversed(range(m.shape[1])) if is_reverse else range(m.shape[1]):
        states[:, chunk] = state
        step = m[:, chunk].float()
        state = c[:, chunk, None, None] * state - (step.mT if is_reverse else step) @ state + b[:, chunk].float()
    return states


@chunk_scan.register_fake
def _(c: Tensor, m: Tensor, b: Tensor, is_reverse: bool) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


def _keep_scan(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    c, m, _, _ = inputs
    ctx.save_for_backward(c, m, output)


def _scan_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    c, m, states = ctx.saved_tensors
    b = chunk_scan(c, m, gradient.contiguous(), True)
    return (b.float() * states.float()).sum((-1, -2)), -(b @ states.mT), b, None


chunk_scan.register_autograd(_scan_gradient, setup_context=_keep_scan)

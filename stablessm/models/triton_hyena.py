"""Triton kernels for Hyena's short filter and its first product, forward, backward and for one step.

A program processes BLOCK channels of q, k and v over TILES tiles of ROWS steps. ``width`` is the number of channels of
q, k and v together, and ``inside`` the mask of the channels that exist. The steps just before and after a tile are
loaded again, usually from the cache. The backward pass recomputes k and v, so that only the projection is stored. The
gradient of the filter is summed over programs in a fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.scan.triton.launch import Launch

ROWS, BLOCK, TILES, WARPS = 8, 64, 16, 4
"""Number of steps and channels of a tile, tiles per program, and warps per program."""


@triton.jit
def _row(z, tail, batch, t, channel, steps, width, inside, TAIL: tl.constexpr, ACC: tl.constexpr):
    """Load z[t] for some channels; for t < 0, load one of the two steps before z from ``tail``, or return 0 without a
    tail.
    """
    real = inside & (t >= 0) & (t < steps)
    value = tl.load(z + (batch * steps + t) * width + channel, mask=real, other=0.0).to(ACC)
    if TAIL:
        early = inside & (t < 0) & (t >= -2)
        value += tl.load(tail + (batch * 2 + 2 + t) * width + channel, mask=early, other=0.0).to(ACC)
    return value


@triton.jit
def _kept(reset, batch, t, steps, RESET: tl.constexpr, ACC: tl.constexpr):
    """Return the factor by which inputs before step t are multiplied: 0 if an episode starts at step t, otherwise 1."""
    if RESET:
        starts = tl.load(reset + batch * steps + t, mask=(t >= 0) & (t < steps), other=0)
        return tl.where(starts != 0, 0.0, 1.0).to(ACC)
    return tl.full(t.shape, 1.0, ACC)


@triton.jit
def _place(chunks, channels: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """Return which part of the result this program computes: its sequence, its channels, its first step, and the number
    of its chunk (a range of time of one sequence) among all chunks.
    """
    columns = tl.cdiv(channels, BLOCK)
    chunk = tl.program_id(0) // columns
    channel = (tl.program_id(0) % columns) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return (chunk // chunks).to(tl.int64), channel, (chunk % chunks) * (ROWS * TILES), chunk.to(tl.int64)


@triton.jit
def _taps(weight, channel, width, inside, ACC: tl.constexpr):
    """Load the three filter taps of each channel in ``channel`` from the array ``weight`` (3, width)."""
    first = tl.load(weight + channel, mask=inside, other=0.0).to(ACC)
    second = tl.load(weight + width + channel, mask=inside, other=0.0).to(ACC)
    third = tl.load(weight + 2 * width + channel, mask=inside, other=0.0).to(ACC)
    return first, second, third


@triton.jit
def _sum(
    z, tail, batch, t, channel, steps, width, inside, one, two, first, second, third,
    TAIL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the filter's output at step t: first · z[t] + second · one · z[t-1] + third · two · z[t-2].

    ``first``, ``second`` and ``third`` are the filter taps. ``one`` and ``two`` are 0 if the earlier input belongs to
    another episode, otherwise 1."""
    total = first * _row(z, tail, batch, t, channel, steps, width, inside, TAIL, ACC)
    total += second * (one * _row(z, tail, batch, t - 1, channel, steps, width, inside, TAIL, ACC))
    return total + third * (two * _row(z, tail, batch, t - 2, channel, steps, width, inside, TAIL, ACC))


@triton.jit(do_not_specialize=("steps", "chunks"))
def forward_kernel(
    z, tail, reset, weight, q, u, steps, chunks,
    channels: tl.constexpr, TAIL: tl.constexpr, RESET: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute q and u = k ⊙ v from the projection z, for one chunk of time."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, c, start, _ = _place(chunks, channels, ROWS, BLOCK, TILES)
    width: tl.constexpr = 3 * channels
    within = c < channels
    q0, q1, q2 = _taps(weight, c, width, within, ACC)
    k0, k1, k2 = _taps(weight, c + channels, width, within, ACC)
    v0, v1, v2 = _taps(weight, c + 2 * channels, width, within, ACC)
    for i in range(TILES):
        t = (start + i * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
        inside = within & (t < steps)
        one = _kept(reset, batch, t, steps, RESET, ACC)
        two = one * _kept(reset, batch, t - 1, steps, RESET, ACC)
        query = _sum(z, tail, batch, t, c, steps, width, inside, one, two, q0, q1, q2, TAIL, ACC)
        key = _sum(z, tail, batch, t, c + channels, steps, width, inside, one, two, k0, k1, k2, TAIL, ACC)
        value = _sum(z, tail, batch, t, c + 2 * channels, steps, width, inside, one, two, v0, v1, v2, TAIL, ACC)
        to = (batch * steps + t) * channels + c
        tl.store(q + to, query.to(q.dtype.element_ty), mask=inside)
        tl.store(u + to, (key * value).to(u.dtype.element_ty), mask=inside)


@triton.jit
def _added(partial, chunk, channel, width, within, first, second, third):
    """Sum the gradients ``first``, ``second`` and ``third`` of the three filter taps over their rows (steps), and store
    the sums in row ``chunk`` of the array ``partial`` (chunks, 3, width), at the entries ``channel`` where the mask
    ``within`` is True.
    """
    to = partial + chunk * 3 * width + channel
    tl.store(to, tl.sum(first, 0, keep_dims=True), mask=within)
    tl.store(to + width, tl.sum(second, 0, keep_dims=True), mask=within)
    tl.store(to + 2 * width, tl.sum(third, 0, keep_dims=True), mask=within)


@triton.jit(do_not_specialize=("steps", "chunks"))
def backward_kernel(
    z, tail, reset, weight, d_q, d_u, d_z, partial, steps, chunks,
    channels: tl.constexpr, TAIL: tl.constexpr, RESET: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of z for one chunk of time, and the chunk's contribution to the gradient of the filter.

    Let g[t] be the gradient of the filter's output, and f0, f1, f2 the filter taps. Then d_z[t] = f0 g[t] + f1 g[t+1] +
    f2 g[t+2] within an episode, and d_fj = Σ g[t] z[t-j]. For q, g is d_q; for k, g is d_u v; for v, g is d_u k.
    """
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, c, start, chunk = _place(chunks, channels, ROWS, BLOCK, TILES)
    width: tl.constexpr = 3 * channels
    within = c < channels
    q0, q1, q2 = _taps(weight, c, width, within, ACC)
    k0, k1, k2 = _taps(weight, c + channels, width, within, ACC)
    v0, v1, v2 = _taps(weight, c + 2 * channels, width, within, ACC)
    d_q0 = tl.zeros((ROWS, BLOCK), ACC)
    d_q1, d_q2 = d_q0, d_q0
    d_k0, d_k1, d_k2 = d_q0, d_q0, d_q0
    d_v0, d_v1, d_v2 = d_q0, d_q0, d_q0
    for i in range(TILES):
        t = (start + i * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
        inside = within & (t < steps)
        before = _kept(reset, batch, t - 1, steps, RESET, ACC)
        one = _kept(reset, batch, t, steps, RESET, ACC)
        next_one = _kept(reset, batch, t + 1, steps, RESET, ACC)
        last_one = _kept(reset, batch, t + 2, steps, RESET, ACC)
        two, next_two, last_two = one * before, next_one * one, last_one * next_one
        # For q, the gradient of the filter's output is d_q.
        of = (batch * steps + t) * channels + c
        here = tl.load(d_q + of, mask=inside, other=0.0).to(ACC)
        after = tl.load(d_q + of + channels, mask=inside & (t + 1 < steps), other=0.0).to(ACC)
        later = tl.load(d_q + of + 2 * channels, mask=inside & (t + 2 < steps), other=0.0).to(ACC)
        to = d_z + (batch * steps + t) * width + c
        grad = q0 * here + q1 * (next_one * after) + q2 * (last_two * later)
        tl.store(to, grad.to(d_z.dtype.element_ty), mask=inside)
        d_q0 += here * _row(z, tail, batch, t, c, steps, width, inside, TAIL, ACC)
        d_q1 += here * (one * _row(z, tail, batch, t - 1, c, steps, width, inside, TAIL, ACC))
        d_q2 += here * (two * _row(z, tail, batch, t - 2, c, steps, width, inside, TAIL, ACC))
        # The gradient at step t depends on k and v at t, t + 1 and t + 2, which are recomputed from these rows.
        ka = _row(z, tail, batch, t - 2, c + channels, steps, width, inside, TAIL, ACC)
        kb = _row(z, tail, batch, t - 1, c + channels, steps, width, inside, TAIL, ACC)
        kc = _row(z, tail, batch, t, c + channels, steps, width, inside, TAIL, ACC)
        kd = _row(z, tail, batch, t + 1, c + channels, steps, width, inside, TAIL, ACC)
        ke = _row(z, tail, batch, t + 2, c + channels, steps, width, inside, TAIL, ACC)
        va = _row(z, tail, batch, t - 2, c + 2 * channels, steps, width, inside, TAIL, ACC)
        vb = _row(z, tail, batch, t - 1, c + 2 * channels, steps, width, inside, TAIL, ACC)
        vc = _row(z, tail, batch, t, c + 2 * channels, steps, width, inside, TAIL, ACC)
        vd = _row(z, tail, batch, t + 1, c + 2 * channels, steps, width, inside, TAIL, ACC)
        ve = _row(z, tail, batch, t + 2, c + 2 * channels, steps, width, inside, TAIL, ACC)
        here = tl.load(d_u + of, mask=inside, other=0.0).to(ACC)
        after = tl.load(d_u + of + channels, mask=inside & (t + 1 < steps), other=0.0).to(ACC)
        later = tl.load(d_u + of + 2 * channels, mask=inside & (t + 2 < steps), other=0.0).to(ACC)
        g_k = here * (v0 * vc + v1 * (one * vb) + v2 * (two * va))
        grad = k0 * g_k
        grad += k1 * (next_one * after * (v0 * vd + v1 * (next_one * vc) + v2 * (next_two * vb)))
        grad += k2 * (last_two * later * (v0 * ve + v1 * (last_one * vd) + v2 * (last_two * vc)))
        tl.store(to + channels, grad.to(d_z.dtype.element_ty), mask=inside)
        g_v = here * (k0 * kc + k1 * (one * kb) + k2 * (two * ka))
        grad = v0 * g_v
        grad += v1 * (next_one * after * (k0 * kd + k1 * (next_one * kc) + k2 * (next_two * kb)))
        grad += v2 * (last_two * later * (k0 * ke + k1 * (last_one * kd) + k2 * (last_two * kc)))
        tl.store(to + 2 * channels, grad.to(d_z.dtype.element_ty), mask=inside)
        d_k0 += g_k * kc
        d_k1 += g_k * (one * kb)
        d_k2 += g_k * (two * ka)
        d_v0 += g_v * vc
        d_v1 += g_v * (one * vb)
        d_v2 += g_v * (two * va)
    _added(partial, chunk, c, width, within, d_q0, d_q1, d_q2)
    _added(partial, chunk, c + channels, width, within, d_k0, d_k1, d_k2)
    _added(partial, chunk, c + 2 * channels, width, within, d_v0, d_v1, d_v2)


@triton.jit
def step_kernel(z, tail, weight, q, u, new, channels: tl.constexpr, BLOCK: tl.constexpr):
    """Compute q, u = k ⊙ v and the next tail (the last two inputs) for one step z (B, 3 C)."""
    columns: tl.constexpr = (channels + BLOCK - 1) // BLOCK
    batch = (tl.program_id(0) // columns).to(tl.int64)
    c = tl.program_id(0) % columns * BLOCK + tl.arange(0, BLOCK)
    inside, width = c < channels, 3 * channels
    product = tl.full([BLOCK], 1.0, tl.float32)
    for part in tl.static_range(3):
        at = part * channels + c
        now = tl.load(z + batch * width + at, inside, 0.0).to(tl.float32)
        last = tl.load(tail + (2 * batch + 1) * width + at, inside, 0.0)
        first, second, third = _taps(weight, at, width, inside, tl.float32)
        total = first * now + second * last + third * tl.load(tail + 2 * batch * width + at, inside, 0.0)
        tl.store(new + 2 * batch * width + at, last, inside)
        tl.store(new + (2 * batch + 1) * width + at, now, inside)
        if part == 0:
            tl.store(q + batch * channels + c, total.to(q.dtype.element_ty), inside)
        else:
            product *= total
    tl.store(u + batch * channels + c, product.to(u.dtype.element_ty), inside)


def step(z: Tensor, tail: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute q and k ⊙ v, (B, C) each, and the next tail for one step z (B, 3 C), given the tail (B, 2, 3 C)."""
    batch, channels = z.shape[0], z.shape[1] // 3
    q, u = (torch.empty((batch, channels), dtype=z.dtype, device=z.device) for _ in range(2))
    new = torch.empty(tail.shape, dtype=tail.dtype, device=z.device)
    _step_launch(batch, channels)(z, tail, weight, q, u, new)
    return q, u, new


@functools.lru_cache(maxsize=1024)
def _step_launch(batch: int, channels: int) -> Launch:
    block = 4 * BLOCK
    return Launch(step_kernel, batch * -(-channels // block), (), {"channels": channels, "BLOCK": block}, warps=WARPS)


def forward(z: Tensor, tail: Tensor | None, reset: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute q and k ⊙ v, (B, T, C) each, from a contiguous projection z (B, T, 3 C)."""
    batch, steps, width = z.shape
    q, u = (z.new_empty(batch, steps, width // 3) for _ in range(2))
    launch, _ = _launches(*_key(z, tail, reset, weight))
    launch(z, *_given(z, tail, reset), weight.contiguous(), q, u)
    return q, u


def backward(
    z: Tensor, tail: Tensor | None, reset: Tensor | None, weight: Tensor, d_q: Tensor, d_u: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of z and the gradient of the filter's weight (in float32 or float64) from the gradients d_q
    of q and d_u of k ⊙ v.
    """
    batch, steps, width = z.shape
    partial = z.new_empty(batch * _chunks(steps), 3, width, dtype=torch.promote_types(z.dtype, torch.float32))
    d_z, grads = torch.empty_like(z), (d.to(z.dtype).contiguous() for d in (d_q, d_u))
    _, launch = _launches(*_key(z, tail, reset, weight))
    launch(z, *_given(z, tail, reset), weight.contiguous(), *grads, d_z, partial)
    return d_z, partial.sum(0)


def _given(z: Tensor, tail: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the tail and the resets as kernel arguments; in place of an array that is None, return z, which the kernel
    then ignores.
    """
    return z if tail is None else tail.contiguous(), z if reset is None else reset.contiguous().view(torch.uint8)


def _key(z: Tensor, tail: Tensor | None, reset: Tensor | None, weight: Tensor) -> tuple[Any, ...]:
    """Return the properties of the arguments (except alignment) that determine the compiled kernel and its launch."""
    return *z.shape, z.dtype, weight.dtype, None if tail is None else tail.dtype, reset is not None


def _chunks(steps: int) -> int:
    return -(-steps // (ROWS * TILES))


@functools.lru_cache(maxsize=1024)
def _launches(
    batch: int, steps: int, width: int, dtype: torch.dtype, _: torch.dtype, tail: torch.dtype | None, reset: bool
) -> tuple[Launch, Launch]:
    channels = width // 3
    flags = {"channels": channels, "TAIL": tail is not None, "RESET": reset, "DOUBLE": dtype == torch.float64}
    constants = {**flags, "ROWS": ROWS, "BLOCK": BLOCK, "TILES": TILES}
    programs, numbers = batch * _chunks(steps) * -(-channels // BLOCK), (steps, _chunks(steps))
    forward, backward = (
        Launch(kernel, programs, numbers, constants, warps=WARPS) for kernel in (forward_kernel, backward_kernel)
    )
    return forward, backward

"""One step of a small layer with dense input and readout on a GPU, as one Triton kernel.

h' = a h + g (B x + bias) and y = C h' + D x. A program processes one sequence, with B, C and D in registers. Complex
states are pairs of real numbers, and y is the real part. Larger layers take two kernels (:mod:`.triton_linear`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.layers.factor_kind import NO_KIND, Kind
from stablessm.layers.factors import Weights
from stablessm.layers.triton_factors import constants_of
from stablessm.layers.triton_linear import advance as by_two
from stablessm.layers.triton_linear import advanced, given, linear
from stablessm.scan.triton.launch import Launch

ENTRIES = 16384
"""Largest number of entries of a matrix that a program holds."""


@triton.jit(do_not_specialize=("dt", "p", "q"))
def step_kernel(
    x, B, bias, decay, gain, state, C, D, y, new, dt, p, q,
    K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, BIAS: tl.constexpr, SKIP: tl.constexpr, HELD: tl.constexpr,
    MAP: tl.constexpr, CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr, GAIN: tl.constexpr,
    TERMS: tl.constexpr, STATES: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Compute the next state (``new``) and the output y of one sequence.

    K is the number of inputs, N the number of real numbers in a state, and M the number of outputs. If HELD, ``decay``
    and ``gain`` point to a and g; otherwise :func:`.triton_factors.computed` computes a and g.
    """
    row = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, TERMS)[None, :], tl.arange(0, STATES)[:, None]
    exists = n < N
    signal = tl.load(x + row * K + k, k < K, 0.0).to(tl.float32)
    total = tl.sum(tl.load(B + n * K + k, exists & (k < K), 0.0).to(tl.float32) * signal, 1, keep_dims=True)
    if BIAS:
        total += tl.load(bias + n, exists, 0.0).to(tl.float32)
    total = advanced(
        total, decay, gain, state, row * N + n, n, exists, exists, dt, p, q,
        HELD, MAP, CONTINUOUS, COMPLEX, LOG, GAIN,
    )  # fmt: skip
    tl.store(new + row * N + n, total, exists)
    if COMPLEX:  # Re(C h) = Re C · Re h - Im C · Im h
        total = tl.where(n % 2 == 0, total, -total)
    o, m = tl.arange(0, OUTPUTS)[:, None], tl.arange(0, STATES)[None, :]
    read = tl.load(C + o * N + m, (o < M) & (m < N), 0.0).to(tl.float32)
    out = tl.sum(read * tl.trans(total), 1, keep_dims=True)
    if SKIP:
        direct = tl.load(D + o * K + k, (o < M) & (k < K), 0.0).to(tl.float32)
        out += tl.sum(direct * signal, 1, keep_dims=True)
    tl.store(y + row * M + o, out.to(y.dtype.element_ty), o < M)


def step(
    x: Tensor,
    B: Tensor,
    bias: Tensor | None,
    factors: tuple[Tensor, Tensor] | Weights,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the output y (B, d_output) in the dtype of C, and the next states h' (B, N) in float32 or complex64.

    Args:
        x: inputs (B, d_input).
        B: input weights (N, d_input), or for complex states (N, 2, d_input).
        bias: bias (N,), for real states only.
        factors: a and g, (N,) each, where g is real, or the weights from which they are computed.
        C: readout (d_output, N), or for complex states (d_output, N, 2).
        D: direct term (d_output, d_input).
        state: present states h (B, N).
    """
    (rows, terms), states, outputs = x.shape, B.numel() // x.shape[1], C.shape[0]
    if max(terms * states, states * outputs, terms * outputs) > ENTRIES // 2:
        new = by_two(x, B, bias, factors, state)
        direct = None if D is None else (x, D)
        return linear(new, C, second=direct), new
    kind, decay, gain = given(factors, x)
    y = torch.empty((rows, outputs), dtype=C.dtype, device=x.device)
    new = torch.empty(state.shape, dtype=state.dtype, device=x.device)
    launch = _launch(rows, terms, states, outputs, bias is not None, D is not None, state.is_complex(), kind)
    launch(x, B, x if bias is None else bias, decay, gain, state, C, x if D is None else D, y, new)
    return y, new


@functools.lru_cache(maxsize=1024)
def _launch(
    rows: int, terms: int, states: int, outputs: int, bias: bool, skip: bool, is_complex: bool, kind: Kind | None
) -> Launch:
    known = kind or NO_KIND
    sizes = {"K": terms, "N": states, "M": outputs, "BIAS": bias, "SKIP": skip, "HELD": kind is None}
    tiles = {"TERMS": terms, "STATES": states, "OUTPUTS": outputs}
    powers = {name: triton.next_power_of_2(size) for name, size in tiles.items()}
    constants = {**sizes, **constants_of(known, is_complex, False), **powers}
    return Launch(step_kernel, rows, (known.dt, *known.options), constants, warps=4)

"""Triton kernels for the linear maps of one step on a small batch, fused with the operations before and after them.

``linear_kernel`` computes y = onto + f((LN(x) ⊙ times) Wᵀ + second Vᵀ + bias). The layer norm LN, the factor ``times``,
the second input with its weight V, the bias, the activation f and the summand ``onto`` are optional. For a few rows,
reading W takes most of the time, so a program computes COLUMNS outputs of one row by a plain sum. For more rows, a
program computes a tile of ROWS × COLUMNS outputs on tensor cores. Sums are in float32.

``advance_kernel`` computes the next states h' = a h + g (x Bᵀ + bias) of a diagonal recurrence in the same way. Complex
states are pairs of real numbers: the rows of B alternate between real and imaginary parts.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.layers.factor_kind import NO_KIND, Kind
from stablessm.layers.factors import Weights
from stablessm.layers.triton_factors import computed, constants_of
from stablessm.scan.triton.launch import Launch

FEW = 4
"""Largest number of rows for which each row is computed by a plain sum."""
PRODUCTS = 2048
"""Number of products that a program computes at once, for few rows."""
TILE = 16, 32, 256
"""Number of rows, columns and terms of a tile, for more rows."""
SINGLE = 16, 32, 32
"""TILE for float32, which is multiplied without tensor cores: more terms would not fit into registers."""
ENTRIES = 4096
"""Largest number of entries loaded at once to compute mean and deviation of rows; more take too many registers."""


@triton.jit
def _moments(x, row, inside, K: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, EPS: tl.constexpr):
    """Compute the mean and the reciprocal standard deviation of each of the ROWS rows ``row`` of x, both (ROWS, 1)."""
    total = tl.zeros([ROWS, SPAN], tl.float32)
    for first in tl.static_range(0, K, SPAN):
        k = first + tl.arange(0, SPAN)[None, :]
        total += tl.load(x + row * K + k, inside & (k < K), 0.0).to(tl.float32)
    mean = tl.sum(total, 1, keep_dims=True) / K
    total = tl.zeros([ROWS, SPAN], tl.float32)
    for first in tl.static_range(0, K, SPAN):
        k = first + tl.arange(0, SPAN)[None, :]
        value = tl.load(x + row * K + k, inside & (k < K), 0.0).to(tl.float32)
        total += tl.where(k < K, (value - mean) * (value - mean), 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(total, 1, keep_dims=True) / K + EPS)


@triton.jit
def _input(
    x, times, scale, shift, mean, deviation, row, k, inside, K: tl.constexpr, NORM: tl.constexpr, TIMES: tl.constexpr,
    CONJUGATE: tl.constexpr,
):  # fmt: skip
    """Load columns k of the rows ``row`` of x, apply the layer norm, and multiply by ``times``; return (ROWS, TERMS).

    ``mean`` and ``deviation`` are the results of :func:`_moments`, ``scale`` and ``shift`` the weight and bias of the
    norm.

    The layer norm requires NORM, and the factor ``times`` requires TIMES. With CONJUGATE, odd columns change their
    sign.
    """
    there = inside & (k < K)
    value = tl.load(x + row * K + k, there, 0.0).to(tl.float32)
    if NORM:
        value = (value - mean) * deviation * tl.load(scale + k, k < K, 0.0).to(tl.float32)
        value += tl.load(shift + k, k < K, 0.0).to(tl.float32)
    if TIMES:
        value *= tl.load(times + row * K + k, there, 0.0).to(tl.float32)
    if CONJUGATE:  # Re(C h) = Re C · Re h - Im C · Im h
        value = tl.where(k % 2 == 0, value, -value)
    return value


@triton.jit
def _added(
    total, x, times, scale, shift, weight, mean, deviation, row, column, inside, N: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, TIMES: tl.constexpr, CONJUGATE: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add the product of the input tile (:func:`_input`) and the transposed weight to ``total`` (ROWS, COLUMNS), and
    return the sum.

    If ROWS is 1, ``total`` is (COLUMNS, TERMS) instead: single products, which ``_summed`` adds up at the end.
    """
    if ROWS == 1:
        for first in tl.static_range(0, K, TERMS):
            k = first + tl.arange(0, TERMS)[None, :]
            w = tl.load(weight + tl.trans(column) * K + k, tl.trans(column < N) & (k < K), 0.0).to(tl.float32)
            total += w * _input(x, times, scale, shift, mean, deviation, row, k, inside, K, NORM, TIMES, CONJUGATE)
    else:
        for first in tl.range(0, K, TERMS, num_stages=STAGES):
            k = first + tl.arange(0, TERMS)[None, :]
            w = tl.load(weight + tl.trans(column) * K + k, tl.trans(column < N) & (k < K), 0.0)
            value = _input(x, times, scale, shift, mean, deviation, row, k, inside, K, NORM, TIMES, CONJUGATE)
            total = tl.dot(value.to(w.dtype), tl.trans(w), total, input_precision="ieee")
    return total


@triton.jit
def _tile(rows, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows (ROWS, 1) and columns (1, COLUMNS) of this program, and a mask of the existing rows."""
    columns: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    row = (tl.program_id(0) // columns * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    return row, tl.program_id(0) % columns * COLUMNS + tl.arange(0, COLUMNS)[None, :], row < rows


@triton.jit
def _zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr):
    """Return the tile of zeros to which ``_added`` adds the products."""
    return tl.zeros([COLUMNS, TERMS], tl.float32) if ROWS == 1 else tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def _summed(total, ROWS: tl.constexpr):
    if ROWS == 1:
        total = tl.trans(tl.sum(total, 1, keep_dims=True))
    return total


@triton.jit(do_not_specialize=("rows",))
def linear_kernel(
    x, times, scale, shift, weight, bias, second, second_weight, onto, y, rows,
    K: tl.constexpr, N: tl.constexpr, SECOND: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr, SPAN: tl.constexpr,
    TIMES: tl.constexpr, CONJUGATE: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ONTO: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the output y (rows, N) from x (rows, K) and, if SECOND > 0, a second input (rows, SECOND).

    The docstring of this module has the formula. ``scale`` and ``shift`` are the weight and bias of the layer norm.
    """
    row, column, inside = _tile(rows, N, ROWS, COLUMNS)
    mean, deviation = 0.0, 1.0
    if NORM:
        mean, deviation = _moments(x, row, inside, K, SPAN, ROWS, EPS)
    total = _added(
        _zeros(ROWS, COLUMNS, TERMS), x, times, scale, shift, weight, mean, deviation, row, column, inside, N, K,
        NORM, TIMES, CONJUGATE, ROWS, TERMS, STAGES,
    )  # fmt: skip
    if SECOND:
        total = _added(
            total, second, times, scale, shift, second_weight, mean, deviation, row, column, inside, N, SECOND,
            False, False, False, ROWS, TERMS, STAGES,
        )  # fmt: skip
    total = _summed(total, ROWS)
    if BIAS:
        total += tl.load(bias + column, column < N, 0.0).to(tl.float32)
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    there = inside & (column < N)
    if ONTO:
        total += tl.load(onto + row * N + column, there, 0.0).to(tl.float32)
    tl.store(y + row * N + column, total.to(y.dtype.element_ty), there)


@triton.jit
def advanced(
    total, decay, gain, state, place, column, exists, there, dt, p, q,
    HELD: tl.constexpr, MAP: tl.constexpr, CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr,
    GAIN: tl.constexpr,
):  # fmt: skip
    """Compute the next states a h + g total, where h are the present states at the memory offsets ``place``.

    A complex state is two real numbers, and ``column`` is the index of a real number. If HELD, ``decay`` and ``gain``
    point to a and g; otherwise they point to w and the phases, from which a and g are computed. ``exists`` is the mask
    of the columns that exist, and ``there`` the mask of the entries of the tile. The other arguments are as for
    :func:`.triton_factors.computed`.
    """
    entry = column // 2 if COMPLEX else column
    if HELD:
        a = tl.load(decay + (2 * entry if COMPLEX else entry), exists, 0.0)
        b = tl.load(decay + 2 * entry + 1, exists, 0.0) if COMPLEX else tl.zeros_like(a)
        g = tl.load(gain + entry, exists, 0.0)
    else:
        a, b, g, _ = computed(
            decay, gain, state, entry, entry, exists, exists, dt, p, q, MAP, CONTINUOUS, COMPLEX, LOG, GAIN
        )
        a, b, g = a.to(tl.float32), b.to(tl.float32), g.to(tl.float32)
    total = g * total + a * tl.load(state + place, there, 0.0)
    if COMPLEX:
        other = tl.load(state + place + 1 - 2 * (column % 2), there, 0.0)
        total += tl.where(column % 2 == 0, -b, b) * other
    return total


@triton.jit(do_not_specialize=("rows", "dt", "p", "q"))
def advance_kernel(
    x, weight, bias, decay, gain, state, new, rows, dt, p, q,
    K: tl.constexpr, N: tl.constexpr, BIAS: tl.constexpr, HELD: tl.constexpr, MAP: tl.constexpr,
    CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr, GAIN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the next states (rows, N) of a diagonal recurrence from inputs x (rows, K).

    N is the number of real numbers in the states of one row; a complex state is two real numbers. The present states
    are ``state``, and the next states are written to ``new``. The other arguments are as for :func:`advanced`.
    """
    row, column, inside = _tile(rows, N, ROWS, COLUMNS)
    total = _added(
        _zeros(ROWS, COLUMNS, TERMS), x, x, x, x, weight, 0.0, 1.0, row, column, inside, N, K,
        False, False, False, ROWS, TERMS, STAGES,
    )  # fmt: skip
    total = _summed(total, ROWS)
    exists = column < N
    if BIAS:
        total += tl.load(bias + column, exists, 0.0).to(tl.float32)
    there = inside & exists
    total = advanced(
        total, decay, gain, state, row * N + column, column, exists, there, dt, p, q,
        HELD, MAP, CONTINUOUS, COMPLEX, LOG, GAIN,
    )  # fmt: skip
    tl.store(new + row * N + column, total, there)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: tuple[Tensor, Tensor, float] | None = None,
    times: Tensor | None = None,
    gelu: bool = False,
    second: tuple[Tensor, Tensor] | None = None,
    onto: Tensor | None = None,
) -> Tensor:
    """Compute onto + f((LN(x) ⊙ times) Wᵀ + second Vᵀ + bias), (B, N), where everything except x and W is optional.

    Args:
        x: inputs (B, K), or complex (B, K / 2), whose imaginary parts change their signs.
        weight: W (N, K), in any shape with N · K entries.
        bias: bias (N,).
        norm: weight and bias (K,) of the layer norm LN of x, and its epsilon.
        times: factor of the normalized input (B, K).
        gelu: whether f is the GELU; otherwise f is the identity.
        second: a second input (B, M) and its weight V (N, M).
        onto: summand (B, N).
    """
    rows, terms = x.shape
    if x.is_complex():
        terms *= 2
    columns = weight.numel() // terms
    y = torch.empty((rows, columns), dtype=weight.dtype, device=x.device)
    scale, shift, eps = (x, x, 0.0) if norm is None else norm
    other, other_weight = (x, x) if second is None else second
    parts = _Parts(
        0 if second is None else other.shape[1], norm is not None, eps, times is not None, x.is_complex(),
        bias is not None, gelu, onto is not None,
    )  # fmt: skip
    launch = _linear_launch(weight.dtype, rows, terms, columns, parts)
    launch(
        x, x if times is None else times, scale, shift, weight, x if bias is None else bias, other, other_weight,
        x if onto is None else onto, y,
    )  # fmt: skip
    return y


def advance(
    x: Tensor, weight: Tensor, bias: Tensor | None, factors: tuple[Tensor, Tensor] | Weights, state: Tensor
) -> Tensor:
    """Compute the next states a h + g (x Wᵀ + bias) of a diagonal recurrence: (B, N), in float32 or complex64.

    Args:
        x: inputs (B, K).
        weight: input weights W (N, K), or for complex states (2 N, K), in any shape with as many entries.
        bias: bias (N,), for real states only.
        factors: a and g, (N,) each, where g is real, or the weights from which they are computed.
        state: present states h (B, N).
    """
    new = torch.empty(state.shape, dtype=state.dtype, device=x.device)
    kind, decay, gain = given(factors, x)
    launch = _advance_launch(weight.dtype, *state.shape, x.shape[1], bias is not None, state.is_complex(), kind)
    launch(x, weight, x if bias is None else bias, decay, gain, state, new)
    return new


def given(factors: tuple[Tensor, Tensor] | Weights, x: Tensor) -> tuple[Kind | None, Tensor, Tensor]:
    """Return the kind of the factors and the two tensors from which a kernel reads them; x replaces a missing one."""
    if isinstance(factors, Weights):
        return factors.kind, factors.w, x if factors.imag is None else factors.imag
    return None, *factors


class _Parts(NamedTuple):
    """The optional parts of :func:`linear` that a call has, by the names of the kernel's constants."""

    SECOND: int
    """Channels of the second input; 0 without one."""
    NORM: bool
    EPS: float
    TIMES: bool
    CONJUGATE: bool
    BIAS: bool
    GELU: bool
    ONTO: bool


@functools.lru_cache(maxsize=1024)
def _linear_launch(dtype: torch.dtype, rows: int, terms: int, columns: int, parts: _Parts) -> Launch:
    span = min(triton.next_power_of_2(terms), ENTRIES // (1 if rows <= FEW else TILE[0]))
    flags = {"K": terms, "N": columns, "SPAN": span, **parts._asdict()}
    return _launch(linear_kernel, dtype, rows, terms, columns, flags)


@functools.lru_cache(maxsize=1024)
def _advance_launch(
    dtype: torch.dtype, rows: int, states: int, terms: int, bias: bool, is_complex: bool, kind: Kind | None
) -> Launch:
    columns, known = states * (2 if is_complex else 1), kind or NO_KIND
    flags = {"K": terms, "N": columns, "BIAS": bias, "HELD": kind is None, **constants_of(known, is_complex, False)}
    return _launch(advance_kernel, dtype, rows, terms, columns, flags, (known.dt, *known.options))


def _launch(
    kernel: Any,
    dtype: torch.dtype,
    rows: int,
    terms: int,
    columns: int,
    flags: dict[str, Any],
    numbers: tuple[float, ...] = (),
) -> Launch:
    tall, wide, long = TILE if dtype.itemsize == 2 else SINGLE
    if rows <= FEW:
        tall, long = 1, 1024
    across = min(long, max(16, triton.next_power_of_2(terms)))
    if rows <= FEW:
        wide = max(1, min(16, PRODUCTS // across))
    block = {"ROWS": tall, "COLUMNS": wide, "TERMS": across, "STAGES": 3}
    programs = triton.cdiv(rows, block["ROWS"]) * triton.cdiv(columns, block["COLUMNS"])
    return Launch(kernel, programs, (rows, *numbers), {**flags, **block}, warps=4)

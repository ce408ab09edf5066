"""Triton kernels that compute the factors a and g of h[t] = a h[t-1] + g u[t] from the weights w of a layer.

In continuous time they evaluate the map f and then the zero-order hold: a = e^z and g = φ(z) dt with z = λ dt,
λ = f(w) + iω and φ(z) = (e^z - 1)/z. In discrete time a = f(w) e^{iθ}, and g is √(1 - |a|²) or 1. Without ω or θ the
factors are real, and g can also be 1 - a, which gives moving averages. The kernels compute in float64, so that no
formula loses digits of float32. The backward pass evaluates everything again.
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

from stablessm.layers.factor_kind import Kind
from stablessm.layers.triton_hold import _exp, _load, _phi, _store, _whole
from stablessm.scan.triton import ahead
from stablessm.scan.triton.launch import Launch

TILE, WARPS = 256, 4
"""Number of entries of a tile, and warps per program."""
TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)
"""Smallest normal number of float32, which bounds g² from below."""


@triton.jit
def _map(w, p, q, MAP: tl.constexpr):
    """Compute f(w) and f'(w) of the continuous-time map with the name MAP and the options p and q."""
    one = tl.full(w.shape, 1.0, tl.float64)
    if MAP == "direct":
        value, slope = w, one
    elif MAP == "clip":
        value, slope = tl.where(w > -p, -p, w), tl.where(w > -p, 0.0, one)
    elif MAP == "relu":
        value, slope = tl.where(w <= 0, 0.0, -w), tl.where(w > 0, -one, 0.0)
    elif MAP == "exp":
        value, slope = -tl.exp(w), -tl.exp(w)
    elif MAP == "softplus":
        small = tl.exp(-tl.abs(w))
        more = 1.0 + small
        log1p = tl.where(more == 1.0, small, tl.log(more) * small / tl.where(more == 1.0, one, more - 1.0))
        value, slope = -(tl.maximum(w, 0.0) + log1p), -tl.where(w > 0, 1.0, small) / more
    else:  # best: -1 / (p w² + q)
        size = p * w * w + q
        value, slope = -1.0 / size, 2.0 * p * w / (size * size)
    return value, slope


@triton.jit
def _discrete_map(w, p, q, MAP: tl.constexpr):
    """Compute f(w) and f'(w) of the discrete-time map with the name MAP and the options p and q."""
    one = tl.full(w.shape, 1.0, tl.float64)
    if MAP == "direct":
        value, slope = w, one
    elif MAP == "clip":
        low = tl.where(w < p - 1.0, p - 1.0, w)
        value, slope = tl.where(w > 1.0 - p, 1.0 - p, low), tl.where(tl.abs(w) > 1.0 - p, 0.0, one)
    elif MAP == "relu":
        size = tl.exp(-tl.where(w <= 0, 0.0, w))
        value, slope = size, tl.where(w > 0, -size, 0.0)
    elif MAP == "exp":
        rate = tl.exp(tl.where(w > 10.0, 10.0, w))
        value, slope = tl.exp(-rate), tl.where(w > 10.0, 0.0, -rate * tl.exp(-rate))
    elif MAP == "softplus":
        small = tl.exp(-tl.abs(w))
        size = tl.where(w > 0, small, 1.0) / (1.0 + small)
        value, slope = size, -size * (1.0 - size)
    elif MAP == "tanh":
        small = tl.exp(-2.0 * tl.abs(w))
        size = (1.0 - small) / (1.0 + small)
        value, slope = tl.where(w < 0, -size, size), 4.0 * small / ((1.0 + small) * (1.0 + small))
    else:  # best: 1 - 1 / (p w² + q)
        size = p * w * w + q
        value, slope = 1.0 - 1.0 / size, 2.0 * p * w / (size * size)
    return value, slope


@triton.jit
def _place(rows, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the rows of the tile that this program computes, the memory offsets of the tile's entries, and two masks.

    The masks are True for the rows and for the entries that exist.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    return row, row * N + column, row < rows, (row < rows) & (column < N)


@triton.jit
def _gain(size, GAIN: tl.constexpr):
    """Return the factor g of a recurrence in discrete time, and its derivative with respect to ``size``.

    ``size`` is a if the factor a is real, otherwise |a|. GAIN selects the formula of g: √(1 - |a|²), 1 - a or 1.
    """
    if GAIN == "variance":
        square = (1.0 - tl.abs(size)) * (1.0 + tl.abs(size))
        g = tl.sqrt(tl.where(square < TINY, TINY, square))
        slope = tl.where(square < TINY, 0.0, -size / g)
    elif GAIN == "average":
        g, slope = 1.0 - size, tl.full(size.shape, -1.0, tl.float64)
    else:
        g, slope = tl.full(size.shape, 1.0, tl.float64), tl.zeros_like(size)
    return g, slope


@triton.jit
def _wide(pointer, place, inside):
    return tl.load(pointer + place, inside, 0.0).to(tl.float64)


@triton.jit
def computed(
    w, imag, log_dt, row, place, exists, inside, dt, p, q,
    MAP: tl.constexpr, CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr, GAIN: tl.constexpr,
):  # fmt: skip
    """Compute Re a, Im a, Re g and Im g for one tile of the factors a and g; in discrete time, g is real.

    ``w``, ``imag`` and ``log_dt`` point to w, to ω or θ, and to the logarithms of the time steps. ``place`` are the
    offsets of the tile in w, and ``inside`` is the mask of the entries that exist; ``row`` and ``exists`` are the same
    for ``log_dt``. ``dt`` is the time step if there is no ``log_dt``, and p and q are the options of the map.
    """
    weight = _wide(w, place, inside)
    y = _wide(imag, place, inside) if COMPLEX else tl.zeros_like(weight)
    if CONTINUOUS:
        x, _ = _map(weight, p, q, MAP)
        step = tl.exp(_wide(log_dt, row, exists)) if LOG else tl.full([1, 1], 1.0, tl.float64) * dt
        a, b = _exp(x * step, y * step, COMPLEX)
        g, h, _, _ = _phi(x * step, y * step, a, b)
        g, h = g * step, h * step
        if GAIN == "average":
            g = -x * g
    else:
        x, _ = _discrete_map(weight, p, q, MAP)
        a, b = x, y
        if COMPLEX:
            a, b = x * tl.cos(y), x * tl.sin(y)
        g, _ = _gain(x, GAIN)
        h = tl.zeros_like(g)
    return a, b, g, h


@triton.jit(do_not_specialize=("rows", "dt", "p", "q"))
def forward_kernel(
    w, imag, log_dt, decay, gain, rows, dt, p, q,
    N: tl.constexpr, MAP: tl.constexpr, CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr,
    GAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the factors a and g (``decay`` and ``gain``) for one tile of weights; see :func:`computed` for the
    arguments.
    """
    row, place, exists, inside = _place(rows, N, ROWS, BLOCK)
    a, b, g, h = computed(w, imag, log_dt, row, place, exists, inside, dt, p, q, MAP, CONTINUOUS, COMPLEX, LOG, GAIN)
    _store(decay, place, inside, a, b, COMPLEX)
    _store(gain, place, inside, g, h, COMPLEX and CONTINUOUS)


@triton.jit(do_not_specialize=("rows", "dt", "p", "q"))
def backward_kernel(
    w, imag, log_dt, d_decay, d_gain, d_w, d_imag, d_log_dt, rows, dt, p, q,
    N: tl.constexpr, MAP: tl.constexpr, CONTINUOUS: tl.constexpr, COMPLEX: tl.constexpr, LOG: tl.constexpr,
    GAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of w, of the frequency ω or phase θ (``imag``), and of log dt, for one tile of weights.

    The arguments are as for :func:`computed`; ``d_`` marks gradients.
    """
    row, place, exists, inside = _place(rows, N, ROWS, BLOCK)
    weight = _wide(w, place, inside)
    y = _wide(imag, place, inside) if COMPLEX else tl.zeros_like(weight)
    d_a, d_b = _load(d_decay, place, inside, COMPLEX)
    if CONTINUOUS:
        d_g, d_h = _load(d_gain, place, inside, COMPLEX)
        x, slope = _map(weight, p, q, MAP)
        step = tl.exp(_wide(log_dt, row, exists)) if LOG else tl.full([1, 1], 1.0, tl.float64) * dt
        a, b = _exp(x * step, y * step, COMPLEX)
        _, _, s, t = _phi(x * step, y * step, a, b)
        u, v = a * d_a + b * d_b, a * d_b - b * d_a  # conj(a) d_a
        s, t = s * step, t * step
        d_x, d_y = step * (u + s * d_g + t * d_h), step * (v + s * d_h - t * d_g)
        if GAIN == "average":  # g = 1 - a, and a is real
            d_x = step * a * (d_a - d_g)
        if LOG:
            total = tl.sum(tl.where(inside, x * u + y * v + a * d_g + b * d_h, 0.0), 1, keep_dims=True)
            tl.store(d_log_dt + row, (step * total).to(d_log_dt.dtype.element_ty), exists)
    else:
        x, slope = _discrete_map(weight, p, q, MAP)
        _, d_size = _gain(x, GAIN)
        d_x = d_a
        d_y = tl.zeros_like(d_a)
        if COMPLEX:
            cos, sin = tl.cos(y), tl.sin(y)
            d_x, d_y = cos * d_a + sin * d_b, x * (cos * d_b - sin * d_a)
        d_x += d_size * _wide(d_gain, place, inside)
    tl.store(d_w + place, (d_x * slope).to(d_w.dtype.element_ty), inside)
    if COMPLEX:
        tl.store(d_imag + place, d_y.to(d_imag.dtype.element_ty), inside)


def forward(
    kind: Kind, w: Tensor, imag: Tensor | None, log_dt: Tensor | None, *, differentiated: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the factors a and g of a recurrence, in the shape of w: (N,), or (H, N) with log_dt (H,).

    If ``differentiated`` is True, the first call also starts to compile the backward pass.
    """
    if differentiated:
        ahead.running(functools.partial(_both_ways, kind, w, imag, log_dt))
    is_complex = imag is not None
    decay = torch.empty(w.shape, dtype=torch.complex64 if is_complex else torch.float32, device=w.device)
    gain = torch.empty(w.shape, dtype=decay.dtype if kind.continuous else torch.float32, device=w.device)
    launch, _ = _launches(kind, w.shape, is_complex, log_dt is not None)
    launch(w, w if imag is None else imag, w if log_dt is None else log_dt, decay, gain)
    ahead.running(None)
    return decay, gain


def _both_ways(kind: Kind, *tensors: Tensor | None) -> None:
    w, imag, log_dt = map(ahead.meta, tensors)
    backward(kind, w, imag, log_dt, *forward(kind, w, imag, log_dt))


def backward(
    kind: Kind, w: Tensor, imag: Tensor | None, log_dt: Tensor | None, d_decay: Tensor, d_gain: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute the gradients of w, imag and log_dt from the gradients of the factors a and g."""
    d_w, d_imag, d_log_dt = (None if tensor is None else torch.empty_like(tensor) for tensor in (w, imag, log_dt))
    _, launch = _launches(kind, w.shape, imag is not None, log_dt is not None)
    given = (w, w if imag is None else imag, w if log_dt is None else log_dt, _whole(d_decay), _whole(d_gain))
    launch(*given, d_w, *(d_w if tensor is None else tensor for tensor in (d_imag, d_log_dt)))  # type: ignore[arg-type]
    return d_w, d_imag, d_log_dt  # type: ignore[return-value]


def constants_of(kind: Kind, is_complex: bool, log: bool) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels for a recurrence with the map and options in ``kind``.

    With ``log``, the kernels read logarithms of time steps.
    """
    return {
        "MAP": kind.map, "CONTINUOUS": kind.continuous, "COMPLEX": is_complex, "LOG": log, "GAIN": kind.gain
    }  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _launches(kind: Kind, shape: tuple[int, ...], is_complex: bool, log: bool) -> tuple[Launch, Launch]:
    rows, states = (shape[0], 1) if len(shape) == 1 else shape
    block = triton.next_power_of_2(states)
    height = max(1, TILE // block)
    constants = {"N": states, **constants_of(kind, is_complex, log), "ROWS": height, "BLOCK": block}
    numbers = (rows, kind.dt, *kind.options)
    forward, backward = (
        Launch(kernel, triton.cdiv(rows, height), numbers, constants, warps=WARPS)
        for kernel in (forward_kernel, backward_kernel)
    )
    return forward, backward

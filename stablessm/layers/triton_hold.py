"""Triton kernels of the zero-order hold: one for the forward pass and one for the backward pass.

λ has the shape (rows, N) and dt the shape (rows, 1), where rows is the product of all dimensions except the last. A
program processes a tile of ROWS × BLOCK eigenvalues. It computes in float64, with real and imaginary parts as two
numbers, so that no formula loses digits of float32. The backward pass computes a and g again. It sums the gradient of
dt over the columns of a tile, and then over tiles in a fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.scan.triton.launch import Launch

BLOCK, TILE, WARPS = 128, 256, 4
"""Largest number of columns of a tile, number of entries of a tile, and warps per program."""


@triton.jit
def _place(rows, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the rows of this program's tile, the memory offsets of its entries, and a mask of existing entries."""
    columns: tl.constexpr = (N + BLOCK - 1) // BLOCK
    row = ((tl.program_id(0) // columns) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = (tl.program_id(0) % columns) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return row, row * N + column, (row < rows) & (column < N)


@triton.jit
def _load(pointer, place, inside, COMPLEX: tl.constexpr):
    """Load one tile of numbers; return the real parts and the imaginary parts (zero for real numbers).

    ``pointer``, ``place`` and ``inside`` are the array, the memory offsets of the entries, and the mask of existing
    entries.
    """
    if COMPLEX:
        real = tl.load(pointer + 2 * place, mask=inside, other=0.0).to(tl.float64)
        return real, tl.load(pointer + 2 * place + 1, mask=inside, other=0.0).to(tl.float64)
    real = tl.load(pointer + place, mask=inside, other=0.0).to(tl.float64)
    return real, tl.zeros_like(real)


@triton.jit
def _store(pointer, place, inside, real, imag, COMPLEX: tl.constexpr):
    if COMPLEX:
        tl.store(pointer + 2 * place, real.to(pointer.dtype.element_ty), mask=inside)
        tl.store(pointer + 2 * place + 1, imag.to(pointer.dtype.element_ty), mask=inside)
    else:
        tl.store(pointer + place, real.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _exp(x, y, COMPLEX: tl.constexpr):
    """Compute the real and imaginary parts of e^(x + iy)."""
    size = tl.exp(x)
    if COMPLEX:
        return size * tl.cos(y), size * tl.sin(y)
    return size, y


@triton.jit
def _phi(x, y, a, b):
    """Compute φ(z) = (e^z - 1)/z and φ'(z) = (e^z - φ(z))/z for z = x + iy, given e^z = a + ib.

    Below |z| = 1/2, where the differences cancel, use the series of s(z) = (φ(z) - 1)/z: φ = 1 + z s and φ' = φ - s.
    """
    x = tl.where(x < -1e150, -1e150, x)  # also for z = -∞, whose square must be finite
    size = x * x + y * y
    small = size < 0.25
    scale = 1.0 / tl.where(small, 1.0, size)
    p, q = ((a - 1.0) * x + b * y) * scale, (b * x - (a - 1.0) * y) * scale
    dp, dq = ((a - p) * x + (b - q) * y) * scale, ((b - q) * x - (a - p) * y) * scale
    s, t = tl.full(x.shape, 1.0, tl.float64), tl.zeros_like(y)
    for i in tl.static_range(13):  # s = 1/2 (1 + z/3 (1 + z/4 (…))), without z¹⁴/16! < 1e-17
        s, t = 1.0 + (x * s - y * t) * (1.0 / (15.0 - i)), (x * t + y * s) * (1.0 / (15.0 - i))
    s, t = 0.5 * s, 0.5 * t
    u, v = 1.0 + x * s - y * t, x * t + y * s
    p, q = tl.where(small, u, p), tl.where(small, v, q)
    return p, q, tl.where(small, u - s, dp), tl.where(small, v - t, dq)


@triton.jit(do_not_specialize=("rows",))
def forward_kernel(
    eigenvalues, dt, decay, gain, rows,
    N: tl.constexpr, COMPLEX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the zero-order hold a = e^z and g = φ(z) dt, with z = λ dt, for one tile of eigenvalues λ."""
    row, place, inside = _place(rows, N, ROWS, BLOCK)
    re, im = _load(eigenvalues, place, inside, COMPLEX)
    step = tl.load(dt + row, mask=row < rows, other=0.0).to(tl.float64)
    a, b = _exp(re * step, im * step, COMPLEX)
    p, q, _, _ = _phi(re * step, im * step, a, b)
    _store(decay, place, inside, a, b, COMPLEX)
    _store(gain, place, inside, p * step, q * step, COMPLEX)


@triton.jit(do_not_specialize=("rows",))
def backward_kernel(
    eigenvalues, dt, d_decay, d_gain, d_eigenvalues, partial, rows,
    N: tl.constexpr, COMPLEX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of λ for one tile of eigenvalues, and the contribution of the tile to the gradient of dt.

    With z = λ dt, the function φ of :func:`_phi` and the gradients d_a and d_g of a and g, the two results are d_λ = dt
    (conj(a) d_a + conj(φ'(z) dt) d_g) and d_dt = Re Σ (conj(λ a) d_a + conj(a) d_g).
    """
    row, place, inside = _place(rows, N, ROWS, BLOCK)
    re, im = _load(eigenvalues, place, inside, COMPLEX)
    step = tl.load(dt + row, mask=row < rows, other=0.0).to(tl.float64)
    d_a, d_b = _load(d_decay, place, inside, COMPLEX)
    d_g, d_h = _load(d_gain, place, inside, COMPLEX)
    a, b = _exp(re * step, im * step, COMPLEX)
    _, _, p, q = _phi(re * step, im * step, a, b)
    u, v = a * d_a + b * d_b, a * d_b - b * d_a  # conj(a) d_a
    p, q = p * step, q * step
    _store(d_eigenvalues, place, inside, step * (u + p * d_g + q * d_h), step * (v + p * d_h - q * d_g), COMPLEX)
    total = tl.sum(re * u + im * v + a * d_g + b * d_h, 1, keep_dims=True)
    columns: tl.constexpr = (N + BLOCK - 1) // BLOCK
    to = partial + row * columns + tl.program_id(0) % columns
    tl.store(to, total.to(partial.dtype.element_ty), mask=row < rows)


def forward(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the factors a and g of the zero-order hold for eigenvalues (…, N) and time steps dt (…, 1)."""
    lam = _whole(eigenvalues)
    decay, gain = torch.empty_like(lam), torch.empty_like(lam)
    launch, _ = _launches(dt.numel(), lam.shape[-1], lam.dtype)
    launch(lam, _whole(dt), decay, gain)
    return decay, gain


def backward(eigenvalues: Tensor, dt: Tensor, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the eigenvalues λ and of dt from the gradients of a and g."""
    lam, rows, states = _whole(eigenvalues), dt.numel(), eigenvalues.shape[-1]
    d_lam, partial = torch.empty_like(lam), dt.new_empty(*dt.shape[:-1], -(-states // BLOCK))
    _, launch = _launches(rows, states, lam.dtype)
    launch(lam, _whole(dt), _whole(d_decay), _whole(d_gain), d_lam, partial)
    return d_lam, partial if partial.shape[-1] == 1 else partial.sum(-1, keepdim=True)


def _whole(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor without lazy conjugation or negation, because kernels read the raw memory."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


@functools.lru_cache(maxsize=1024)
def _launches(rows: int, states: int, dtype: torch.dtype) -> tuple[Launch, Launch]:
    block = min(BLOCK, triton.next_power_of_2(states))
    height = max(1, TILE // block)
    programs = -(-rows // height) * -(-states // block)
    constants = {"N": states, "COMPLEX": dtype.is_complex, "ROWS": height, "BLOCK": block}
    forward, backward = (
        Launch(kernel, programs, (rows,), constants, warps=WARPS) for kernel in (forward_kernel, backward_kernel)
    )
    return forward, backward

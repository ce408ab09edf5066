"""What a scan backend is tested with: inputs of every kind, and the comparison with the float64 reference.

Without pytest or hypothesis, so that ``benchmarks/scan_check.py`` can run it on a machine that has PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from stablessm import linear_scan, scan

LENGTHS = [0, 1, 2, 63, 1000, 4097]
TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 3e-3,  # three roundings of the dtype itself
    torch.bfloat16: 3e-2,
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIFFERENTIATED = [name for name in scan.NAMES if name != "triton" or DEVICE == "cuda"]
"""Whose derivatives are compared with differences. Triton's interpreter is slow; it is compared with the reference."""


def device_of(backend: str) -> str:
    return DEVICE if backend == "triton" else "cpu"


def draw(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def draw_decay(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Moduli in (0, 1), many of them close to 1, of either sign or any phase."""
    modulus = 1 - torch.rand(shape, dtype=torch.float64, generator=generator) ** 3
    if dtype == torch.float16:
        modulus = modulus.clamp(max=0.99)  # so that sums stay below 65504
    angle = torch.rand(shape, dtype=torch.float64, generator=generator)
    if dtype.is_complex:
        return torch.polar(modulus, 6.3 * angle).to(dtype)
    return torch.where(angle < 0.2, -modulus, modulus).to(dtype)


def scattered(tensor: Tensor) -> Tensor:
    """The same numbers in memory that is not contiguous in any dimension."""
    wide = torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)
    return wide.transpose(0, -2).contiguous().transpose(0, -2)[..., 0]


def relative_error(ours: Tensor, truth: Tensor, least: float = 1e-30) -> float:
    """Relative to the largest number, or to ``least`` where that is larger."""
    assert ours.shape == truth.shape
    if not truth.numel():
        return 0.0
    return ((ours.cpu().to(truth.dtype) - truth).abs().max() / truth.abs().max().clamp(min=least)).item()


def check_against_reference(
    backend: str,
    dtype: torch.dtype,
    length: int,
    *,
    decay_rank: int,
    batch: int,
    channels: int,
    initial: bool,
    reset: int | None,
    reverse: bool,
    contiguous: bool,
    seed: int,
) -> float:
    """Assert that values and gradients match; returns the largest relative error."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, length, channels)
    inputs = [draw_decay(shape[3 - decay_rank :] if decay_rank > 1 else (channels,), dtype, generator)]
    inputs.append(draw(shape, dtype, generator))
    if initial:
        inputs.append(draw((batch, channels), dtype, generator))
    cut = None if reset is None else torch.rand(shape[2 - reset : 2], generator=generator) < 0.05
    upstream = draw(shape, dtype, generator) / (10 if dtype == torch.float16 else 1)

    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = [tensor.to(wide).requires_grad_() for tensor in inputs]
    truth = linear_scan(*exact, reset=cut, reverse=reverse, backend="reference")
    true_gradients = torch.autograd.grad(truth, exact, upstream.to(wide))

    device = device_of(backend)
    ours = [(t if contiguous else scattered(t)).to(device).detach().requires_grad_() for t in inputs]
    states = linear_scan(*ours, reset=None if cut is None else cut.to(device), reverse=reverse, backend=backend)
    assert states.dtype == dtype
    gradients = torch.autograd.grad(states, ours, upstream.to(device))
    pairs = [(states.detach(), truth.detach()), *zip(gradients, true_gradients, strict=True)]
    worst = max(relative_error(*pair) for i, pair in enumerate(pairs) if i != 1)
    # The gradient of one decay for all steps sums λ h, h as it was stored: where that cancels, what was added counts.
    terms = (true_gradients[1] * truth).detach().abs().square()
    added = terms.sum((0, 1)).sqrt().max().item() if decay_rank == 1 and truth.numel() else 0.0
    worst = max(worst, relative_error(*pairs[1], max(added, 1e-30)))
    assert worst <= TOLERANCE[dtype], f"{backend}, {dtype}: relative error {worst:.1e}"
    return worst


def forget_plans() -> None:
    """What the GPU backend has decided by thresholds that a test changes."""
    from stablessm.scan.triton import linear  # not where ``benchmarks/scan_check.py`` runs without Triton

    linear._forward.cache_clear()
    linear._backward.cache_clear()


@contextmanager
def chained(row_bytes: int = 32, rows: int = 8, window: int = 4) -> Iterator[None]:
    """Let the GPU backend chain tiles of these sizes, whatever that costs."""
    from stablessm.scan.triton import linear
    from stablessm.scan.triton.forms import Form, Tile

    form = Form(Tile(16, row_bytes, rows, 1, 1), window)
    with patch.object(linear, "choose", lambda task: form):
        forget_plans()
        yield
    forget_plans()

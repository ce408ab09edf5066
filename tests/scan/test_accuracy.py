"""The scan over long sequences that hardly forget: float32 results are float64's, rounded once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import draw
from torch import Tensor

from stablessm import linear_scan
from stablessm.scan.cpu import linear as cpu_linear

ROUNDED = 2e-7
"""Two roundings to float32: what a stored state and what is made of it can lose."""


def slow_decay(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Moduli from 1 - 1e-3 (the first channel) to 1 - 1e-6 (the last); any phase where it is complex."""
    spread = torch.rand(shape, dtype=torch.float64, generator=generator)
    modulus = 1 - torch.logspace(-3, -6, shape[-1], dtype=torch.float64) * (1 + spread)
    angle = 6.3 * torch.rand(shape, dtype=torch.float64, generator=generator)
    return (torch.polar(modulus, angle) if dtype.is_complex else modulus).to(dtype)


def worst_error(ours: Tensor, truth: Tensor, least: Tensor | None = None) -> float:
    """Largest |error| over largest |truth| (or ``least``, where that is more) in the worst channel."""
    assert ours.shape == truth.shape
    error, scale = (u.abs().reshape(-1, u.shape[-1]).amax(0) for u in (ours.to(truth.dtype) - truth, truth))
    return (error / (scale if least is None else scale.maximum(least))).max().item()


def check_long_scan(dtype: torch.dtype, steps: int, *, per_step: bool, batch: int, reverse: bool, seed: int) -> None:
    """Values and gradients of white noise against the same scan in float64, channel by channel."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, steps, 3)
    decay = slow_decay(shape if per_step else shape[-1:], dtype, generator)
    inputs = [decay, draw(shape, dtype, generator), draw((batch, 3), dtype, generator)]
    upstream = draw(shape, dtype, generator)

    def run(tensors: list[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        states = linear_scan(*leaves, reverse=reverse, backend="cpu")
        return states.detach(), *torch.autograd.grad(states, leaves, upstream)

    wide = torch.complex128 if dtype.is_complex else torch.float64
    states, *gradients = run(inputs, upstream)
    true_states, *true_gradients = run([tensor.to(wide) for tensor in inputs], upstream.to(wide))
    assert worst_error(states, true_states) <= ROUNDED
    # One decay for all steps sums λ h, h as it was stored: where the sum cancels, what was added counts.
    added = (true_gradients[1] * true_states).abs().square().sum((0, 1)).sqrt()
    leasts = [None if per_step else added, None, None]
    for ours, truth, least in zip(gradients, true_gradients, leasts, strict=True):
        assert worst_error(ours, truth, least) <= ROUNDED


CASES = {
    "per_step": st.booleans(),
    "batch": st.integers(1, 2),
    "reverse": st.booleans(),
    "seed": st.integers(0, 2**31),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@settings(max_examples=6)
@given(**CASES)
def test_a_hundred_thousand_steps(dtype: torch.dtype, per_step: bool, batch: int, reverse: bool, seed: int) -> None:
    check_long_scan(dtype, 100_000, per_step=per_step, batch=batch, reverse=reverse, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@settings(max_examples=6)
@given(**CASES)
def test_a_million_steps(dtype: torch.dtype, per_step: bool, batch: int, reverse: bool, seed: int) -> None:
    check_long_scan(dtype, 1_000_000, per_step=per_step, batch=batch, reverse=reverse, seed=seed)


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("phase", [0.0, 0.3, 3.1])
def test_a_million_steps_of_a_constant_in_closed_form(per_step: bool, phase: float) -> None:
    """h[t] = (1 - a**(t+1)) / (1 - a), λ[t] = (1 - a**(T-t)) / (1 - a) for a drive and a gradient of ones."""
    steps, modulus = 1_000_000, torch.tensor([1 - 1e-6, 1 - 1e-4], dtype=torch.float64)
    decay = torch.polar(modulus, torch.full_like(modulus, phase)).to(torch.complex64) if phase else modulus.float()
    drive = torch.ones(1, steps, 2, dtype=decay.dtype, requires_grad=True)
    leaf = (decay.expand(drive.shape[1:]) if per_step else decay).clone().requires_grad_()
    states = linear_scan(leaf, drive, backend="cpu")
    d_decay, d_drive = torch.autograd.grad(states, (leaf, drive), torch.ones_like(drive))

    a = decay.to(torch.complex128 if phase else torch.float64)
    ahead = torch.arange(1, steps + 1, dtype=torch.float64)[:, None]
    truth = (1 - (a.log() * ahead).exp()) / (1 - a)
    adjoint, before = truth.flip(0).conj(), torch.cat([torch.zeros_like(truth[:1]), truth[:-1]])
    terms = adjoint * before.conj()
    assert worst_error(states[0], truth) <= ROUNDED
    assert worst_error(d_drive[0], adjoint) <= ROUNDED
    assert worst_error(d_decay, terms if per_step else terms.sum(0)) <= ROUNDED


def test_a_short_float_is_float32_inside() -> None:
    """The states of a bfloat16 drive are those of the same numbers in float32, rounded at the end."""
    generator = torch.Generator().manual_seed(0)
    decay = slow_decay((3,), torch.float32, generator)
    drive = draw((1, 100_000, 3), torch.bfloat16, generator)
    states = linear_scan(decay, drive, backend="cpu")
    torch.testing.assert_close(states, linear_scan(decay, drive.float(), backend="cpu").bfloat16(), rtol=0, atol=0)


def test_a_decay_of_one_channel_and_a_large_batch_have_the_same_bits_on_any_threads() -> None:
    """PyTorch's own sum of so many numbers into one depends on the number of threads."""
    drive, decay = torch.randn(100_000, 2, 1), torch.rand(1, requires_grad=True)

    def gradient(threads: int) -> float:
        torch.set_num_threads(threads)
        return torch.autograd.grad(linear_scan(decay, drive, backend="cpu").square().sum(), decay)[0].item()

    assert gradient(1) == gradient(2) == gradient(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("decay_shape", [(300,), (50, 300)])
def test_asking_for_rows_ahead_changes_no_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, decay_shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    decay, drive = slow_decay(decay_shape, dtype, generator), draw((2, 50, 300), dtype, generator)
    states = linear_scan(decay, drive, backend="cpu")
    monkeypatch.setattr(cpu_linear, "PREFETCH_BYTES", 1 << 60)
    assert torch.equal(linear_scan(decay, drive, backend="cpu"), states)

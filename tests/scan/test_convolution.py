"""FFT convolution and Vandermonde sums against the scan and plain sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError, linear_scan, scan

LENGTHS = st.integers(0, 60)


@given(length=LENGTHS, complex_=st.booleans(), initial=st.booleans())
def test_fft_scan_equals_scan(length: int, complex_: bool, initial: bool) -> None:
    dtype = torch.complex128 if complex_ else torch.float64
    decay, drive = torch.rand(3, dtype=dtype) / 2, torch.randn(2, length, 3, dtype=dtype)
    state = torch.randn(2, 3, dtype=dtype) if initial else None
    torch.testing.assert_close(scan.fft_scan(decay, drive, state), linear_scan(decay, drive, state))


@given(length=LENGTHS)
def test_powers_and_sums(length: int) -> None:
    decay = torch.tensor([0.0, 0.5, -0.9, 0.3 + 0.8j], dtype=torch.complex128)
    table = torch.stack([decay**t if t else torch.ones_like(decay) for t in range(length)]) if length else decay[:0]
    ours = scan.powers(decay, length)
    torch.testing.assert_close(ours, table.reshape(length, 4))
    weights, signal = torch.randn(2, 4, dtype=decay.dtype), torch.randn(2, length, dtype=torch.float64)
    torch.testing.assert_close(scan.evaluate(weights, decay, length), weights @ ours.T)
    torch.testing.assert_close(scan.accumulate(signal, decay), signal.to(decay.dtype) @ ours.flip(0))


def test_float32_powers_do_not_drift() -> None:
    decay = torch.polar(torch.tensor([0.99999]), torch.tensor([0.7]))
    exact = decay.to(torch.complex128) ** torch.arange(20_000)[:, None]
    assert (scan.powers(decay, 20_000) - exact).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scan.fft_scan(torch.zeros(3, 1), torch.zeros(1, 3, 1)), r"^decay: expected shape \(channels,\)"),
        (
            lambda: scan.causal_convolution(torch.zeros(1, 4, 1), torch.zeros(8, 1)),
            r"^kernel: expected shape \(4, 1\)",
        ),
        (lambda: scan.causal_convolution(torch.zeros(4, 1), torch.zeros(4, 1)), r"^signal: expected 3 dimensions"),
        (lambda: scan.why_not("fast"), r"^backend: expected one of 'reference'.*got 'fast'"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    signal, kernel = torch.randn(2, 9, 3).to(dtype), torch.randn(9, 3).to(dtype)
    found = scan.causal_convolution(signal, kernel)
    assert found.dtype == dtype
    assert torch.equal(found, scan.causal_convolution(signal.float(), kernel.float()).to(dtype))

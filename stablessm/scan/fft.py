"""Convolution by FFT, which computes a recurrence whose decay is the same at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.scan.checks import check_arguments, check_kinds, check_tensor
from stablessm.scan.vandermonde import powers


def causal_convolution(signal: Tensor, kernel: Tensor) -> Tensor:
    """Compute y[b, t, c] = Σ_{s ≤ t} kernel[t-s, c] · signal[b, s, c]  (SSM-UA, below eq. 4).

    Args:
        signal: (B, T, C), real or complex.
        kernel: (T, C).

    >>> kernel = torch.tensor([[1.0], [2.0], [4.0]])
    >>> causal_convolution(torch.ones(1, 3, 1), kernel).flatten().round(decimals=4).tolist()
    [1.0, 3.0, 7.0]
    """
    check_tensor("signal", signal, 3)
    check_kinds("signal", signal=signal, kernel=kernel)
    check_tensor("kernel", kernel)
    if kernel.shape != signal.shape[1:]:
        raise ArgumentError("kernel", f"shape {tuple(signal.shape[1:])}", f"shape {tuple(kernel.shape)}")
    steps = signal.shape[1]
    if not signal.numel():
        return signal * kernel
    given = torch.promote_types(signal.dtype, kernel.dtype)
    if given.itemsize == 2:  # PyTorch has no FFT of float16 and bfloat16
        return causal_convolution(signal.float(), kernel.float()).to(given)
    size = _fast_length(2 * steps - 1)
    if signal.is_complex() or kernel.is_complex():
        spectrum = torch.fft.fft(signal, size, dim=1) * torch.fft.fft(kernel, size, dim=0)
        return torch.fft.ifft(spectrum, size, dim=1)[:, :steps]
    spectrum = torch.fft.rfft(signal, size, dim=1) * torch.fft.rfft(kernel, size, dim=0)
    return torch.fft.irfft(spectrum, size, dim=1)[:, :steps]


def fft_scan(decay: Tensor, drive: Tensor, initial: Tensor | None = None) -> Tensor:
    """Compute all states of :func:`stablessm.linear_scan` by FFT, for a decay (C,) that is the same at every step.

    >>> fft_scan(torch.tensor([0.5]), torch.ones(1, 3, 1)).flatten().round(decimals=4).tolist()
    [1.0, 1.5, 1.75]
    """
    check_arguments(decay, drive, initial, None)
    if decay.dim() != 1:
        raise ArgumentError("decay", "shape (channels,), the same at every step", f"shape {tuple(decay.shape)}")
    response = powers(decay.to(drive.dtype), drive.shape[1] + 1)
    states = causal_convolution(drive, response[:-1])
    return states if initial is None else states + response[1:] * initial[:, None]


def _fast_length(least: int) -> int:
    """Return the smallest length ≥ ``least`` that has only small prime factors, for which FFTs are fast."""
    return min(odd << max(0, (-(-least // odd) - 1).bit_length()) for odd in (1, 3, 5, 9, 15))

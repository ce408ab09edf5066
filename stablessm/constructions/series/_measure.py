"""Measurement of the errors of a Volterra model: errors of its kernels, and of its outputs for white noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from stablessm.constructions.series._kernels import SampledKernel

if TYPE_CHECKING:
    from stablessm.constructions.series.model import VolterraSSM

_INPUTS = 32  # number of random inputs for the comparison of outputs
_BLOCK = 1_000_000  # number of kernel values that are evaluated together


def measure(model: VolterraSSM, kernels: Sequence[SampledKernel]) -> None:
    """Measure the errors of the kernels and outputs of a model compared with given kernels; store the errors in the
    model.
    """
    model.kernel_errors, model.sup_errors = kernel_errors, sup_errors = {}, {}
    for kernel in kernels:
        off, size, largest_off, largest = (_sampled if kernel.whole is None else _whole)(model, kernel)
        kernel_errors[kernel.order] = ratio(math.sqrt(off), math.sqrt(size))
        sup_errors[kernel.order] = ratio(largest_off, largest)
    model.output_error = _output_error(model, kernels)


def run(model: VolterraSSM, x: np.ndarray) -> np.ndarray:
    """Run a model on inputs (B, T) and return its outputs (B, T), as NumPy arrays."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)[..., None])[0][..., 0].numpy())


def ratio(error: float, size: float) -> float:
    """Return ``error / size``: 0 if both are zero, and infinite if only the size is zero."""
    return error / size if size else (0.0 if not error else math.inf)


def _whole(model: VolterraSSM, kernel: SampledKernel) -> list[float]:
    """Compare a model's kernel with the given kernel at all steps: return [squared error, squared size, largest error,
    largest size].
    """
    import torch

    assert kernel.whole is not None
    steps, parts = torch.arange(kernel.horizon + 1), []
    for block in steps.split(max(1, _BLOCK // len(steps) ** (kernel.order - 1))):
        with torch.no_grad():
            found = model.kernel(block, *[steps] * (kernel.order - 1)).numpy()
        parts.append(_part(found, kernel.whole[block.numpy()]))
    return [*np.sum(parts, 0)[:2].tolist(), *np.max(parts, 0)[2:].tolist()]


def _sampled(model: VolterraSSM, kernel: SampledKernel) -> list[float]:
    """Compare a model's kernel with the given kernel at sampled points: return [squared error, squared size, largest
    error, largest size].

    The result is the error on the test nodes, or the error at random points or on the diagonal if that is larger.
    """
    import torch

    nodes, weights = kernel.tested()
    with torch.no_grad():
        found = model.kernel(*[torch.from_numpy(nodes)] * kernel.order).numpy()
    parts = [_part(found, kernel.on(nodes), reduce(np.multiply.outer, [weights] * kernel.order))]
    parts += [_part(model.values(points), kernel.at(*points.T), share) for points, share in kernel.scattered()]
    off, _, largest_off, largest = np.max(parts, 0).tolist()
    return [off, parts[0][1], largest_off, largest]


def _part(found: np.ndarray, truth: np.ndarray, weight: np.ndarray | float = 1.0) -> list[float]:
    """Compare a kernel with the true kernel: return [squared error, squared size, largest error, largest size].

    The first two are the weighted sums Σ weight off² and Σ weight truth².
    """
    both = found - truth, truth
    return [*(float((weight * each**2).sum()) for each in both), *(float(np.abs(each).max()) for each in both)]


def _output_error(model: VolterraSSM, kernels: Sequence[SampledKernel]) -> float:
    """Return the relative error of the last output for random inputs that are nonzero only at the test steps."""
    nodes, weights = max(kernels, key=lambda kernel: kernel.order).tested()
    amplitudes = np.random.default_rng(0).standard_normal((_INPUTS, len(nodes))) * np.sqrt(weights)
    wanted = np.full(_INPUTS, float(model.constant.detach()))
    for kernel in kernels:
        letters = "abc"[: kernel.order]
        equation = f"{letters}," + ",".join(f"i{letter}" for letter in letters) + "->i"
        values = np.einsum(equation, kernel.on(nodes), *[amplitudes] * kernel.order, optimize=True)
        wanted += kernel.dt**kernel.order * values
    x = np.zeros((_INPUTS, kernels[0].horizon + 1))
    x[:, kernels[0].horizon - nodes] = amplitudes
    off = run(model, x)[:, -1] - wanted
    return ratio(float(np.linalg.norm(off)), float(np.linalg.norm(wanted)))

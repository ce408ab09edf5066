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
    """Measure the errors of the kernels and outputs of a model, and store them in the model.

    ``kernels`` are the true kernels.
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
    """Compare the kernel of a model with the given kernel at all points of the grid.

    Returns the list [sum of squared errors, sum of squared values, largest error, largest value].
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
    """Compare the kernel of a model with the given kernel at three sets of points.

    The sets are the test nodes, random points and the diagonal of the grid. Returns the four numbers of :func:`_part`.
    Each number is the largest of the three sets, except the sum of squared values, which is taken at the test nodes.
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
    """Return [Σ weight (found - truth)², Σ weight truth², max |found - truth|, max |truth|] for values of two kernels.

    ``found`` is the kernel of a model, and ``truth`` the given kernel.
    """
    both = found - truth, truth
    return [*(float((weight * each**2).sum()) for each in both), *(float(np.abs(each).max()) for each in both)]


def _output_error(model: VolterraSSM, kernels: Sequence[SampledKernel]) -> float:
    """Return the relative root mean square error of the last output of a model, over random inputs.

    The inputs are nonzero only at the test steps of the kernels.
    """
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

"""How far a Volterra model is off: its kernels, and its outputs for white noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stablessm.constructions.series._kernels import SampledKernel

if TYPE_CHECKING:
    from stablessm.constructions.series.model import VolterraSSM

_INPUTS = 32  # random inputs on which outputs are compared
_BLOCK = 1_000_000  # values of a kernel at once


class _Part(NamedTuple):
    """Some values of a kernel: Σ weight off², Σ weight truth², max |off|, max |truth|."""

    off: float
    size: float
    largest_off: float
    largest: float


def measure(model: VolterraSSM, kernels: Sequence[SampledKernel]) -> None:
    """Compare the model that runs with the kernels, and its outputs with sums over them."""
    kernel_errors, sup_errors = {}, {}
    for kernel in kernels:
        found, truth, largest_off, largest = (
            _whole(model, kernel) if kernel.whole is not None else _sampled(model, kernel)
        )
        kernel_errors[kernel.order] = ratio(math.sqrt(found), math.sqrt(truth))
        sup_errors[kernel.order] = ratio(largest_off, largest)
    model.kernel_errors, model.sup_errors = kernel_errors, sup_errors
    model.output_error = _output_error(model, kernels)


def run(model: VolterraSSM, x: np.ndarray) -> np.ndarray:
    """(B, T) to (B, T)."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)[..., None])[0][..., 0].numpy())


def ratio(error: float, size: float) -> float:
    """error / size; an error of nothing is infinite."""
    return error / size if size else (0.0 if not error else math.inf)


def _whole(model: VolterraSSM, kernel: SampledKernel) -> _Part:
    """Over all steps, in blocks of the first axis."""
    parts = list(_blocks(model, kernel))
    return _Part(
        sum(p.off for p in parts), sum(p.size for p in parts), max(p[2] for p in parts), max(p[3] for p in parts)
    )


def _blocks(model: VolterraSSM, kernel: SampledKernel) -> Iterator[_Part]:
    import torch

    assert kernel.whole is not None
    steps = torch.arange(kernel.horizon + 1)
    rows = max(1, _BLOCK // len(steps) ** (kernel.order - 1))
    for block in steps.split(rows):
        with torch.no_grad():
            found = model.kernel(block, *[steps] * (kernel.order - 1)).numpy()
        yield _part(found, kernel.whole[block.numpy()])


def _sampled(model: VolterraSSM, kernel: SampledKernel) -> _Part:
    """Over graded steps; an error that uniform points or the diagonal show to be larger counts instead."""
    import torch

    nodes, weights = kernel.tested()
    with torch.no_grad():
        found = model.kernel(*[torch.from_numpy(nodes)] * kernel.order).numpy()
    graded = _part(found, kernel.on(nodes), _outer([weights] * kernel.order))
    others = [_part(model.values(points), kernel.at(*points.T), share) for points, share in kernel.scattered()]
    parts = [graded, *others]
    return _Part(max(p.off for p in parts), graded.size, max(p[2] for p in parts), max(p[3] for p in parts))


def _part(found: np.ndarray, truth: np.ndarray, weight: np.ndarray | float = 1.0) -> _Part:
    off = found - truth
    sums = [float((weight * values**2).sum()) for values in (off, truth)]
    return _Part(sums[0], sums[1], float(np.abs(off).max()), float(np.abs(truth).max()))


def _output_error(model: VolterraSSM, kernels: Sequence[SampledKernel]) -> float:
    """For white noise thinned out: nonzero at the steps tested, with the variance of the steps they stand for."""
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


def _outer(vectors: Sequence[np.ndarray]) -> np.ndarray:
    product = vectors[0]
    for vector in vectors[1:]:
        product = np.multiply.outer(product, vector)
    return product

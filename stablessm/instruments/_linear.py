"""The memory function of linear time-invariant models, from their impulse response, and a test of linearity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor

from stablessm.instruments.adapters.facts import takes_time_steps
from stablessm.instruments.systems import System

LARGE = 100.0
"""With the norm ``plus_one``, which has no largest input, amplitudes up to this multiple of the bound are tried."""

MAX_CORNERS = 12
"""Largest number of input channels for which all corners of the cube |x|_∞ = 1 are tried."""


def reach(norm: str, bound: float) -> float:
    """Return the largest size of inputs to try: ``bound`` or, for the norm ``plus_one``, ``LARGE`` times ``bound``."""
    return LARGE * bound if norm == "plus_one" else bound


@final
@dataclass(frozen=True)
class Gain:
    """The gain of a linear model with kernel ρ at each time: the largest |ρ x|₂ of all inputs x that a norm allows.

    The norm is an option of :func:`stablessm.memory_function`; see :func:`largest_gain`.
    """

    value: Tensor
    """Gain at each time (T,), float64."""
    maximizer: Tensor
    """Input that attains the gain at each time (T, d_input)."""
    proved: bool
    dtype: torch.dtype
    """Dtype in which the kernel was measured."""


def gain(
    system: System, horizon: int, dt: float, norm: str, bound: float, warm_up: int, *, assume: bool
) -> Gain | None:
    """Return the gain of a linear model at the times 0, dt, …; return None if the model is not linear.

    Linearity is tested with inputs up to the size ``reach(norm, bound)``, unless ``assume`` is True. ``warm_up`` is the
    number of steps without input before time 0.
    """
    size = reach(norm, bound)
    if system.pooled or not (assume or (superposes(system, size) and superposes(system, size / 100))):
        return None
    continuous = takes_time_steps(system.model)
    pieces = () if assume and continuous else _responses(system, horizon, size, warm_up)
    found: list[tuple[Tensor, Tensor, bool, torch.dtype]] = []
    off = largest = torch.zeros((), dtype=torch.float64)
    for response, difference, moved in pieces:
        if not continuous:
            found.append((*largest_gain(response / dt, norm, bound), response.dtype))
        off, largest = torch.maximum(off, difference), torch.maximum(largest, moved)  # a NaN stays
        eps = torch.finfo(response.dtype).eps
    # hard limits and gates may show only after a long constant input; an overflow is returned as it is
    if not assume and largest.isfinite() and (not largest or not off <= eps**0.5 * largest):
        return None
    if continuous:
        kernels = continuous_kernel(system, horizon)
        found = [(*largest_gain(kernel, norm, bound), kernel.dtype) for kernel in kernels]
    values, maximizers, proved, dtypes = zip(*found, strict=True)
    return Gain(torch.cat(values), torch.cat(maximizers), proved[0], dtypes[-1])


def _responses(system: System, horizon: int, size: float, warm_up: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the impulse response in chunks (·, d_output, d_input), each with two numbers for a test of linearity.

    The model also runs on two constant inputs. If the model is linear, the responses to the constant inputs are sums
    over the impulse response. The first number is the largest difference between the responses and these sums. The
    second number is the largest entry of the responses.
    """
    d = system.d_input
    # random directions: a model may respond to differences of channels alone, or only above a threshold
    drawn = torch.randn(min(d, 2) ** 2, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # of either sign, one smaller than the impulses: a nonlinearity may show only after a lag
    drawn = torch.nn.functional.normalize(drawn, dim=1)
    held = torch.cat([drawn, -drawn, -0.7 * drawn[:1]]).to(system.device, system.dtype) * size
    impulses = torch.eye(d, device=system.device, dtype=system.dtype) * size

    def drive(start: int, stop: int) -> Tensor:
        x = torch.zeros(1 + d + len(held), stop - start, d, device=system.device, dtype=system.dtype)
        if start <= 0 < stop:
            x[1 : d + 1, -start] = impulses
        x[d + 1 :, max(0, -start) :] = held[:, None]
        return x

    summed, skip = held.new_zeros(len(held), 1, system.d_output, dtype=torch.float64), warm_up
    for y in system.outputs(drive, -warm_up, horizon, steady=1):
        heard = y[:, skip:]
        skip = max(0, skip - y.shape[1])
        if heard.shape[1]:
            response = ((heard[1 : d + 1] - heard[:1]) / size).permute(1, 2, 0)
            moved = torch.einsum("toi,ni->nto", response.double(), held.double())
            step, sums = heard[d + 1 :] - heard[:1], summed + moved.cumsum(1)
            summed = sums[:, -1:]
            yield response, (step - sums).abs().max().double().cpu(), step.abs().max().double().cpu()


def superposes(system: System, size: float) -> bool:
    """Return True if H(2x - 3x') = 2H(x) - 3H(x') for random inputs x and x' of the given size.

    H(x) is the difference between the outputs of the system for the input x and for zero input.
    """
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(2, 32, system.d_input, generator=generator, dtype=torch.float64) * size
    x = torch.stack([torch.zeros_like(pair[0]), pair[0], pair[1], 2 * pair[0] - 3 * pair[1]])
    y, _ = system.call(x.to(system.device, system.dtype), None)
    first, second, mixed = y[1:] - y[0]
    rounding = 100 * torch.finfo(y.dtype).eps * y.abs().max()
    if rounding > 0 and mixed.abs().max() <= rounding:
        return False  # inputs this small are lost in rounding, so nothing is known
    return bool((mixed - 2 * first + 3 * second).abs().max() <= rounding)


def continuous_kernel(system: System, horizon: int) -> Iterator[Tensor]:
    """Yield the exact kernel ρ(k dt) of a linear layer in continuous time, in chunks (·, d_output, d_input).

    An input x that is constant for a time τ leads to the state τ B x + O(τ²), where B are the input weights. The
    derivative of this state with respect to τ at τ = 0 is B x, the state after an impulse. From this state, the layer
    runs without input.
    """
    layer, d = system.model, system.d_input
    impulses = torch.eye(d + 1, d, device=system.device, dtype=system.dtype)  # the last row is no input

    def pulse(duration: Tensor) -> tuple[Tensor, Tensor]:
        y, state = layer.step(impulses, layer.initial_state(d + 1), dt=duration)
        return y[:-1] - y[-1:], state[:-1] - state[-1:]

    zero = torch.zeros((), dtype=torch.promote_types(system.dtype, torch.float32), device=system.device)
    first, state = torch.func.jvp(pulse, (zero,), (torch.ones_like(zero),))[1]

    def silence(start: int, stop: int) -> Tensor:
        return torch.zeros(2 * d, stop - start, d, device=system.device, dtype=system.dtype)

    yield first[:, None].permute(1, 2, 0)
    both = torch.cat([state, layer.initial_state(d)])
    for y in system.outputs(silence, 0, horizon - 1, state=both, steady=0):
        yield (y[:d] - y[d:]).permute(1, 2, 0)


def largest_gain(kernel: Tensor, norm: str, bound: float) -> tuple[Tensor, Tensor, bool]:
    """Return three results: the largest |ρ x|₂ at each time, the inputs that attain it, and whether it is the exact
    maximum.

    ``kernel`` (T, d_output, d_input) is ρ. The maximum is taken over the inputs x with |x|₂ ≤ 1 (``ball``), over the
    unit vectors of the channels (``unit``), or over the inputs with |x|_∞ ≤ 1 (``plus_one``). The inputs that are
    returned for ``ball`` have the size ``bound``. For ``plus_one`` with several outputs and more than ``MAX_CORNERS``
    input channels, the first result is only a lower bound of the maximum.
    """
    kernel = kernel.double().cpu()
    if norm == "ball":
        finite = kernel.isfinite().flatten(1).all(1)
        _, values, right = torch.linalg.svd(kernel.nan_to_num(0, 0, 0), full_matrices=False)
        return torch.where(finite, values[:, 0], torch.nan), right[:, 0] * bound, True
    if norm == "unit":
        size, best = torch.linalg.vector_norm(kernel, dim=1).max(-1)
        return size, torch.eye(kernel.shape[2], dtype=kernel.dtype)[best], True
    # plus_one: |ρ x| / (|x|_∞ + 1) grows with the length of x, towards the largest |ρ x| on the cube's corners
    d = kernel.shape[2]
    if kernel.shape[1] == 1:
        corner = torch.where(kernel[:, 0] < 0, -1.0, 1.0).to(kernel.dtype)
        return kernel[:, 0].abs().sum(-1), corner, True
    if d <= MAX_CORNERS:
        corners = torch.tensor([(1.0, *signs) for signs in product((-1.0, 1.0), repeat=d - 1)], dtype=kernel.dtype)
        size, best = torch.linalg.vector_norm(kernel @ corners.mT, dim=1).max(-1)
        return size, corners[best], True
    # many inputs and outputs: the corner nearest to the best direction, a lower bound
    _, _, right = torch.linalg.svd(kernel.nan_to_num(0, 0, 0), full_matrices=False)
    corner = torch.where(right[:, 0] < 0, -1.0, 1.0).to(kernel.dtype)
    return torch.linalg.vector_norm(torch.einsum("toi,ti->to", kernel, corner), dim=-1), corner, False

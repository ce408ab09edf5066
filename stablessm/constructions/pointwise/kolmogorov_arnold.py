"""Construction of a five-layer SSM for f(x_1 … x_d), by the Kolmogorov-Arnold theorem (SSM-UA, proposition 3.6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._renamed import renamed
from stablessm.constructions._checks import real_array
from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._stack import LayerStack, two_layers
from stablessm.constructions.pointwise._superposition import Sprecher, Superposition, iterate
from stablessm.layers import LRU, RealSSM

_POINTS = 100_000
"""Number of random points at which the error is measured."""
_NEAR = (1e-2, 1e-3, 1e-4, 1e-5)
"""Distances from the points of largest error at which a larger error is searched for."""
_AGREEING = 50
"""Number of the random points at which the layers, and not only the superposition, are evaluated."""
_HELD = 30_000_000
"""Approximate number of values that are in memory at once."""
_RADIUS = 0.5
"""Modulus of the eigenvalues of the third layer."""


@final
@renamed("realisation")
@checked
@dataclass(frozen=True, eq=False, repr=False)
class KolmogorovArnold(Result):
    """The result of :func:`kolmogorov_arnold`: a five-layer SSM that approximates a function, and its error."""

    model: LayerStack = field(repr=False)
    """Model from (batch, time, 1) to (batch, time, 1), in float64; its output at step ``length`` approximates f."""
    length: int
    """Number of inputs of f."""
    base: int
    """Base γ of Sprecher's function."""
    families: int
    """Number of terms of the superposition, at least 2 length + 1."""
    error: float
    """Largest relative error max |f - y| / max |f| over random points and points near the worst of them; a lower bound
    of the supremum."""
    rms_error: float
    """Root mean square error over the random points, relative to max |f|."""
    realization: float
    """Relative difference max |F - y| / max |f| of the superposition F and the output y of the layers."""
    condition: float
    """Steepest slope of an outer function, by which errors of the inner sums are multiplied (L in SSM-UA eq. 55)."""
    widths: tuple[int, ...]
    """Number of states of each layer."""
    seconds: float
    """Seconds that the construction took."""

    @property
    def width(self) -> int:
        """Return the width of the model, which is the number of states of its widest layer."""
        return max(self.widths)

    @property
    def parameters(self) -> int:
        """Return the number of weights of the five-layer SSM."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the model on inputs (batch, length) in [0, 1]; return the outputs (batch,) at the last step."""
        x = real_array("x", x)
        if x.ndim != 2 or x.shape[1] != self.length:
            raise ArgumentError("x", f"shape (batch, {self.length})", f"shape {x.shape}")
        parts = np.array_split(x, 1 + len(x) * self.length * self.width // _HELD)
        with torch.no_grad():
            outputs = [self.model(torch.from_numpy(part)[..., None])[0][:, -1, 0].numpy() for part in parts]
        return np.concatenate(outputs)

    def __str__(self) -> str:
        widths = " + ".join(map(str, self.widths))
        return f"{widths} states, error {self.error:.1%} at least, {self.rms_error:.2%} in the mean square"


@checked
def kolmogorov_arnold(
    f: Callable[[np.ndarray], Any],
    length: Size,
    *,
    level: int = 1,
    digits: int = 1,
    iterations: int | None = None,
    max_width: Size = 300_000,
) -> KolmogorovArnold:
    """Construct a five-layer SSM whose output at step ``length`` approximates f(x_1 … x_d), d = ``length``, on [0,
    1]^d::

        f(x_1 … x_d) ≈ Σ_q Φ_q(Σ_p λ_p ψ(s x_p + q a)),    q = 0 … γ - 2

    (SSM-UA eq. 15–17, 48–50, figure 3). Layers 1 and 2 have no memory and apply ψ with every shift. Layer 3, an LRU
    with d modes per channel on a circle, has the kernel λ_d, …, λ_1 and computes the sum over p, which is a sum over
    time steps. Layers 4 and 5 apply the outer functions Φ_q. ψ does not depend on f. Layers with hardtanh, a sigmoidal
    function, represent the piecewise linear functions ψ and Φ_q exactly, so that ``realization`` consists of rounding
    errors.

    Args:
        f: a continuous, vectorized function from (n, length) to (n,).
        length: d, the number of inputs of f, at least 2.
        level: sets the base γ = (2d + 2) 2^(level - 1). There are γ - 1 terms: 2d + 1 at level 1, as in the theorem.
        digits: number of digits of x that the superposition resolves; more than one requires a small base.
        iterations: number of times that the residual is added to the outer functions (default: max(2, ``digits``)).
        max_width: largest allowed number of units of a layer.

    The fourth layer has about γ · γ^(d · digits) units. ψ is constant except in short gaps, in which it rises. If an
    x_p with p < d is in a gap, the inner sum ξ_q = Σ_p λ_p ψ(s x_p + q a) takes values that belong to other places, and
    one of the γ - 1 terms is wrong. The largest error therefore decreases about as 1/γ, which for d = 2 is the inverse
    cube root of the width. More digits do not reduce the largest error, but make the regions where it occurs narrower,
    which reduces the mean square error.

    Only the output at step ``length`` approximates f. At earlier steps, ψ = 0 takes the place of the inputs that have
    not arrived. At later steps, the kernel of layer 3 repeats, reduced by a factor of 2^(-length).

    >>> product = kolmogorov_arnold(lambda x: x[:, 0] * x[:, 1], length=2, level=2)
    >>> product.widths, product.error < 0.2, product.realization < 1e-9
    ((122, 11, 22, 1573, 1), True, True)
    >>> bool(abs(product(np.array([[0.5, 0.6]]))[0] - 0.3) < 0.06)
    True
    """
    started = time.perf_counter()
    length, level = whole_number("length", length, 2), whole_number("level", level, 1)
    digits, max_width = whole_number("digits", digits, 1), whole_number("max_width", max_width, 1)
    iterations = max(2, digits) if iterations is None else whole_number("iterations", iterations, digits)
    base = (2 * length + 2) * 2 ** (level - 1)
    if (needed := (base - 1) * base ** (length * digits)) > max_width:
        raise ArgumentError(
            "max_width", f"about {needed}, or a lower level, fewer digits or a shorter length", max_width
        )
    target = Pointwise(f, np.zeros(length), np.ones(length), interval=False)
    if (size := target(np.full((1, length), 0.5)).shape[1]) != 1:
        raise ArgumentError("f", "one output", f"{size}")
    found = iterate(target, Sprecher(length, base, digits, base - 1), iterations)
    layers = (*_inner_layers(found), _sum_over_time(found), *_outer_layers(found))
    seconds = round(time.perf_counter() - started, 3)
    return _measured(target, found, LayerStack(*layers), seconds)


def _inner_layers(found: Superposition) -> tuple[RealSSM, RealSSM]:
    """Build the first two layers, which map an input x to Sprecher's inner function ψ(s x + q a) for all shifts q."""
    from scipy.linalg import block_diag

    inner = found.inner
    cells, gap = inner.base**inner.digits, 1 - inner.flat
    slopes, offsets, readouts, constants = [], [], [], []
    for q in range(inner.families):
        middle = ((np.arange(cells) + inner.flat + gap / 2) / cells - q * inner.shift) / inner.scale
        half = gap / (2 * cells * inner.scale)
        met = (middle > -half) & (middle < 1 + half)
        rises = np.diff(inner.psi)[met]
        slopes.append(np.full(len(rises), 1 / half))
        offsets.append(-middle[met] / half)
        readouts.append(rises / 2)
        constants.append(inner.psi[np.argmax(met)] + rises.sum() / 2)
    A = np.concatenate(slopes)[:, None]
    return two_layers(A, np.concatenate(offsets), block_diag(*readouts), np.array(constants), "hardtanh")


def _outer_layers(found: Superposition) -> tuple[RealSSM, RealSSM]:
    """Build the last two layers, which map the inner sums ξ_q to the sum Σ_q Φ_q(ξ_q) of the outer functions."""
    from scipy.linalg import block_diag

    slopes, offsets, weights, constants = zip(*(phi.ramps() for phi in found.outer), strict=True)
    A = block_diag(*slopes).T
    return two_layers(A, np.concatenate(offsets), np.concatenate(weights)[None], np.array([sum(constants)]), "hardtanh")


@torch.no_grad()
def _sum_over_time(found: Superposition) -> LRU:
    """Build the third layer, which sums its inputs u over time: the output at step d is Σ_p λ_p u[p].

    By a discrete Fourier transform, d modes with eigenvalues r e^(2πij/d) can have any d values as a kernel.
    """
    channels, d = found.inner.families, found.inner.dimension
    kernel = found.inner.weights[::-1]
    weights = np.fft.fft(kernel * _RADIUS ** -np.arange(float(d))) / d
    with torch.random.fork_rng(devices=[]):  # the layer draws weights, which are then replaced
        layer = LRU(channels, channels * d, channels, map="direct", normalize=False, skip=False, mode="scan").double()
    layer.w.fill_(_RADIUS)
    layer.phase.copy_((2 * torch.pi / d * torch.arange(d, dtype=torch.float64)).repeat(channels))
    layer.B.zero_()
    layer.B[:, 0] = torch.kron(torch.eye(channels), torch.ones(d, 1))
    blocks = np.kron(np.eye(channels), weights[None])
    layer.C.copy_(torch.view_as_real(torch.from_numpy(blocks)))
    return layer


def _measured(f: Pointwise, found: Superposition, model: LayerStack, seconds: float) -> KolmogorovArnold:
    inner, draw = found.inner, np.random.default_rng(0)
    x = draw.random((_POINTS, inner.dimension))
    values, wanted = found(x), f(x)[:, 0]
    scale = float(np.abs(wanted).max()) or 1.0
    slope = max(float(np.abs(2 * np.diff(phi.values) / np.diff(phi.knots)).max()) for phi in found.outer)
    result = KolmogorovArnold(
        model=model,
        length=inner.dimension,
        base=inner.base,
        families=inner.families,
        error=_worst(f, found, x, np.abs(wanted - values), draw) / scale,
        rms_error=float(np.sqrt(np.mean((wanted - values) ** 2))) / scale,
        realization=np.nan,
        condition=slope,
        widths=tuple(int(layer.state_shape[0]) for layer in model),
        seconds=seconds,
    )
    return replace(result, realization=float(np.abs(result(x[:_AGREEING]) - values[:_AGREEING]).max()) / scale)


def _worst(f: Pointwise, found: Superposition, x: np.ndarray, errors: np.ndarray, draw: np.random.Generator) -> float:
    """Return the largest error |f - F| of the superposition F = ``found`` that a search finds.

    The search starts from the points x with their errors. It tries random points around the hundred worst points, at
    smaller and smaller distances.
    """
    for distance in _NEAR:
        worst = x[np.argsort(errors)[-100:]]
        around = worst[:, None] + distance * draw.uniform(-1, 1, size=(len(worst), 100, worst.shape[1]))
        x = np.concatenate([worst, np.clip(around.reshape(-1, worst.shape[1]), 0, 1)])
        errors = np.abs(f(x)[:, 0] - found(x))
    return float(errors.max())

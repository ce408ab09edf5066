"""The stability modulus of a map: closed forms for two families of maps, and a numerical search for all other maps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stablessm.reparam.base import Reparameterization

TOLERANCE = 1e-6
"""Relative tolerance of the search, for maps that do not vary on scales below a millionth of the interval."""

_CLOSE = 500  # number of weights around which the search is finer
_FAR = 1e6

_TOUCH = 1e-14

_MARGIN = 0.03
"""Share of the interval at each end in which a point counts as next to the end."""

_STARTS, _ROUNDS, _SHRINK = 8, 40, 0.5


def exp_modulus(rate: float) -> float:
    """Return e^rate - 1, or infinity if e^rate overflows.

    This is the stability modulus g(β) of a map for which the logarithm of the distance to the stability boundary has
    the Lipschitz constant ``rate`` / β.

    >>> exp_modulus(1000.0)
    inf
    """
    return math.expm1(rate) if rate < 709 else math.inf


def quadratic_modulus(beta: float, c: float) -> float:
    """Return β (β + √(β² + 4c)) / (2c), the stability modulus of the map ``best`` with c = b/a.

    The eigenvalue of this map has the distance 1/(aw² + b) from the stability boundary. The modulus is the supremum of
    (a(w+β)² + b)/(aw² + b) - 1, which is attained at w = (√(β² + 4c) - β)/2. StableSSM eq. 75 prints a bound that
    depends on w.

    >>> quadratic_modulus(1.0, 0.5)                                # (1 + √3)
    2.732050807568877
    """
    return beta * (beta + math.sqrt(beta * beta + 4 * c)) / (2 * c)


def relative_change(map: Reparameterization, w: Tensor, w_tilde: Tensor) -> Tensor:
    """Compute the relative change of the memory of a mode when its weight changes from w to w̃.

    The stability modulus is the supremum of this number. The two tensors of weights are broadcast.

    In continuous time, and in discrete time for eigenvalues of the same sign, the change is |d(w)/d(w̃) - 1|, where d
    is the distance to the stability boundary. In discrete time the change is the sum (1 - |λ|) Σ_k |λ̃^k - λ^k|, with
    the eigenvalues λ of w and λ̃ of w̃. For eigenvalues of opposite signs, this sum is
    (1 - |λ|) (|λ| + |λ̃|) / ((1 - max) (1 + min)), with the maximum and the minimum of |λ| and |λ̃|.

    The change is infinite where only w̃ is unstable. The change is set to 0 where w is unstable, because definition 3.2
    of StableSSM considers only changes of stable models.
    """
    lam, lam_tilde = map(w), map(w_tilde)
    d, d_tilde = map.distance(w), map.distance(w_tilde)
    size, size_tilde = lam.abs(), lam_tilde.abs()
    crossing = (size + size_tilde) / (torch.minimum(d, d_tilde) * (1 + torch.minimum(size, size_tilde)))
    change = torch.where(lam.sign() * lam_tilde.sign() < 0, d * crossing, (d - d_tilde).abs() / d_tilde)
    return torch.where(d <= 0, 0.0, torch.where(d_tilde <= 0, torch.inf, change))


def grid(low: float, high: float) -> Tensor:
    """Return about 400 float64 points in [low, high]: half evenly spaced, half logarithmically spaced around 0."""
    fine = torch.logspace(-6, 0, 100, dtype=torch.float64)
    points = torch.cat([torch.linspace(low, high, 201, dtype=torch.float64), low * fine, high * fine])
    return points.clamp(low, high).unique()


def far_grid(low: float, high: float) -> Tensor:
    """Return 800 float64 points outside of [low, high], at logarithmically spaced distances up to ±1e6."""
    steps = torch.logspace(-6, 0, 400, dtype=torch.float64)
    return torch.cat([low - (low + _FAR) * steps, high + (_FAR - high) * steps])


def close_grid(w: Tensor, low: float, high: float) -> Tensor:
    """Return float64 points in [low, high] at logarithmically spaced distances from each of the weights w.

    If there are more than 500 weights, 500 of them are used.
    """
    weights = w.detach().double().cpu().flatten().unique()
    weights = weights[weights.isfinite()]
    some = torch.linspace(0, max(len(weights) - 1, 0), min(len(weights), _CLOSE)).long()
    steps = torch.logspace(-6, 6, 300, dtype=torch.float64)
    return (weights[some, None] + torch.cat([steps, -steps])).flatten().clamp(low, high)


def touching(map: Reparameterization, interval: tuple[float, float], *, beyond: bool = False) -> Tensor:
    """Return weights at which λ touches the stability boundary without crossing it, as λ = -w² does at w = 0.

    The distance to the boundary is evaluated on a grid, and a ternary search refines each local minimum. A distance
    counts as zero if it is negligible compared with the median distance on the grid. If ``beyond``, the grid also
    contains the points of :func:`far_grid`, outside of the interval.
    """
    points = grid(*interval)
    zero = _TOUCH * map.distance(points).median()
    if beyond:
        points = torch.cat([points, far_grid(*interval)]).unique()
    distance = map.distance(points)
    below = (distance[1:-1] <= distance[:-2]) & (distance[1:-1] <= distance[2:]) & (distance[:-2] != distance[2:])
    below |= (distance[1:-1] < distance[:-2]) & (distance[1:-1] < distance[2:])
    low, high = points[:-2][below], points[2:][below]
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        falls = map.distance(left) > map.distance(right)
        low, high = torch.where(falls, left, low), torch.where(falls, high, right)
    middle = (low + high) / 2
    return middle[map.distance(middle) <= zero]


def grows(map: Reparameterization, interval: tuple[float, float]) -> bool:
    """Return True if the stability modulus may be infinite, because it still grows toward the ends of the interval.

    This is the case if the modulus over the interval is more than twice the modulus over its middle half, and if the
    supremum is next to an end. (A map that comes near the stability boundary inside the interval has a large but finite
    modulus.)
    """
    low, high = interval
    width = high - low
    whole = search(map, 1.0, interval)
    if whole <= 2 * search(map, 1.0, (low + width / 4, high - width / 4)):
        return False
    inner = search(map, 1.0, (low + _MARGIN * width, high - _MARGIN * width))
    return not inner >= (1 - _MARGIN**2) * whole


def search(map: Reparameterization, beta: float, interval: tuple[float, float]) -> float:
    """Find the supremum of ``relative_change`` over all weights in the interval with |w̃ - w| ≤ β.

    The search evaluates the pairs (w, w̃) of a grid, and refines the grid around the pairs with the largest change. The
    result is a lower bound of the supremum.

    >>> from stablessm.reparam import get
    >>> round(search(get("exp"), 1.0, (-5.0, 5.0)), 6)                  # e - 1
    1.718282
    """
    low, high = interval

    def evaluate(w: Tensor, w_tilde: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Clamping, not masking: the supremum is mostly at |w̃ - w| = β, so every grid must have such pairs.
        w, w_tilde = torch.broadcast_tensors(w.clamp(low, high), w_tilde)
        w_tilde = w_tilde.clamp((w - beta).clamp(min=low), (w + beta).clamp(max=high)).flatten(-2)
        return relative_change(map, w.flatten(-2), w_tilde), w.flatten(-2), w_tilde

    points = grid(low, high)
    value, w, w_tilde = evaluate(points[:, None], points[None, :])
    best = value.topk(_STARTS)
    w, w_tilde = w[best.indices], w_tilde[best.indices]
    step = (high - low) / 200 * torch.linspace(-1, 1, 9, dtype=torch.float64)
    for _ in range(_ROUNDS):
        value, near, near_tilde = evaluate(w[:, None, None] + step[:, None], w_tilde[:, None, None] + step[None, :])
        index = value.argmax(-1, keepdim=True)
        w, w_tilde = near.gather(-1, index)[:, 0], near_tilde.gather(-1, index)[:, 0]
        step = step * _SHRINK
    return float(max(best.values.max(), value.max()))

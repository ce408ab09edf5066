"""Check of the properties that every map must have.

Call :func:`check` on your own map before you train a model with this map.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from stablessm._checked import checked
from stablessm.reparam.base import Reparameterization
from stablessm.reparam.modulus import far_grid, relative_change

_RADII = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0)


class ContractError(AssertionError):
    """The error that :func:`check` raises if a map violates a property; ``violated`` names the property."""

    def __init__(self, violated: str, detail: str) -> None:
        super().__init__(f"{violated}: {detail}")
        self.violated = violated


@checked
def check(map: Reparameterization, *, dtype: torch.dtype = torch.float64) -> None:
    """Check the properties of a map; raise a ContractError that names the first property that the map violates.

    The check uses about 500 weights in ``map.search_interval`` and, for stability, 800 more up to ±1e6. If no error is
    raised, no violation was found among these weights.

    These properties are checked, in this order:

    - ``range``: f(w) lies in ``map.range`` and, if ``map.is_stable``, is a stable eigenvalue.
    - ``round trip``: f(inverse(λ)) = λ.
    - ``distance`` is -λ, or 1 - |λ| in discrete time.
    - ``derivative`` equals the derivative by autograd.
    - ``gradient``: the gradient is never NaN, however large the weight.
    - ``gradient scale`` is |f'|/distance².
    - ``modulus at zero``: the stability modulus g(0) is 0.
    - ``modulus finite``: the stability modulus is finite if and only if the map is stable.
    - ``modulus monotone``: the stability modulus does not decrease in β.
    - ``modulus dominates``: no sampled change of a weight changes the memory by more than the modulus.

    >>> from stablessm.reparam import get
    >>> check(get("softplus"), dtype=torch.float32)
    """
    low, high = map.search_interval
    # A fixed seed, so that a check that fails once always fails.
    spread = torch.rand(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.cat([torch.linspace(low, high, 257), low + (high - low) * spread]).to(dtype)
    _check_values(map, w)
    _check_slopes(map, w)
    _check_modulus(map, w.double())


def _check_values(map: Reparameterization, w: Tensor) -> None:
    tol = 1e4 * torch.finfo(w.dtype).eps
    lam = map(w)
    low, high = map.range
    # Rounding may put λ on an open end of the range; λ beyond the end is an error.
    _require("range", (lam >= low - tol) & (lam <= high + tol), w, lam)
    if map.is_stable:
        _require("range", lam <= 0 if map.time == "continuous" else lam.abs() <= 1, w, lam)
        far = far_grid(*map.search_interval).to(w.dtype)
        _require("range", ~(map.distance(far) < -tol * far.abs()), far, map(far))
    inside = map.range.holds(lam)
    again = map(map.inverse(lam[inside]))
    _require("round trip", torch.isclose(again, lam[inside], rtol=tol, atol=tol**2), lam[inside], again)
    truth = -lam if map.time == "continuous" else 1 - lam.abs()
    _require("distance", torch.isclose(map.distance(w), truth, rtol=tol, atol=tol), w, map.distance(w))


def _check_slopes(map: Reparameterization, w: Tensor) -> None:
    tol = 1e4 * torch.finfo(w.dtype).eps
    slope = map.derivative(w)
    _require("derivative", torch.isclose(slope, _autograd(map, w), rtol=tol, atol=tol), w, slope)
    extreme = torch.tensor([-1e30, -1e3, 0.0, 1e3, 1e30], dtype=w.dtype)
    _require("gradient", ~_autograd(map, extreme).isnan(), extreme, _autograd(map, extreme))
    general = torch.where(slope == 0, 0.0, slope.abs() / map.distance(w) ** 2)
    scale = map.gradient_scale(w)
    _require("gradient scale", torch.isclose(scale, general, rtol=tol, atol=tol), w, scale)


def _check_modulus(map: Reparameterization, w: Tensor) -> None:
    at = {beta: map.stability_modulus(beta) for beta in _RADII}
    if at[0.0] != 0:
        raise ContractError("modulus at zero", f"{map} has {at[0.0]} at beta = 0")
    slack = 1 + map.modulus_tolerance + 1e-9
    for smaller, beta in pairwise(_RADII):
        if math.isfinite(at[beta]) != map.is_stable:
            raise ContractError("modulus finite", f"{map} has is_stable={map.is_stable} but {at[beta]} at {beta}")
        if not at[beta] * slack >= at[smaller]:
            raise ContractError("modulus monotone", f"{map} falls from {at[smaller]} to {at[beta]} at {beta}")
        if map.is_stable:
            w_tilde = (w + beta * torch.linspace(-1, 1, 17).double()[:, None]).clamp(*map.search_interval)
            change = relative_change(map, w, w_tilde)
            # A distance that is computed from λ has the rounding error of λ.
            rounding = 1e-15 * (1 + at[beta]) * (1 / map.distance(w) + 1 / map.distance(w_tilde))
            bounded = change.isfinite() & (change <= at[beta] * slack + rounding)
            _require("modulus dominates", bounded, w.expand_as(change), change)


def _autograd(map: Reparameterization, w: Tensor) -> Tensor:
    return Reparameterization.derivative(map, w)


def _require(violated: str, holds: Tensor, at: Tensor, value: Tensor) -> None:
    if not bool(holds.all()):
        where = int((~holds).flatten().int().argmax())
        raise ContractError(violated, f"{value.flatten()[where]:.9g} at {at.flatten()[where]:.9g}")

"""The base class of reparameterizations, with default implementations by differentiation and search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, overload

import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Time, takes_tensor
from stablessm.reparam import modulus
from stablessm.reparam.interval import Interval

_ROUNDING = 1e-12
"""Tolerance relative to |w|: an eigenvalue that is farther beyond the boundary is not a rounding error."""

_AGAIN = 1e-5, 1e-6
"""Round-trip tolerance (rtol, atol) of f(f⁻¹(λ))."""

_SEARCHED = "is_stable comes from a search over weights of up to 1e6, not from a proof"


class Reparameterization(ABC):
    """An elementwise map λ = f(w) from trainable weights to eigenvalues (StableSSM, section 3.2).

    Every method takes a real tensor of any shape and returns a tensor of the same shape and dtype. Your own map sets
    ``name`` and ``time`` and implements ``__call__`` and ``inverse``. All other methods have defaults, which a map
    overrides if it has a closed form (``derivative``, ``distance``, ``gradient_scale``, ``is_stable``, ``range``,
    ``_modulus`` together with ``modulus_tolerance``, ``_boundary_distance``). A map that is a frozen dataclass prints
    its options, and two such maps are equal if their options are equal.

    >>> class Calm(Reparameterization):
    ...     name, time = "calm", "continuous"
    ...     def __call__(self, w):
    ...         return -(w / 2).exp()
    ...     def inverse(self, eigenvalues):
    ...         return 2 * (-eigenvalues).log()
    >>> f = Calm()
    >>> f.is_stable, round(f.stability_modulus(0.5), 6)
    (True, 0.284025)
    """

    name: ClassVar[str]
    time: ClassVar[Time]

    search_interval: ClassVar[tuple[float, float]] = (-10.0, 10.0)
    """Range of the weights that a search examines. In discrete time, 1 - |λ| must not be rounded to 0 at its ends:
    a map that saturates faster than tanh overrides ``distance`` or narrows this range."""

    @abstractmethod
    def __call__(self, w: Tensor) -> Tensor:
        """Return the eigenvalues f(w)."""

    @abstractmethod
    def inverse(self, eigenvalues: Tensor) -> Tensor:
        """Return a weight w with f(w) = λ; raise an ArgumentError if λ is outside the range."""

    def __init_subclass__(cls) -> None:
        for name in ("__call__", "inverse", "derivative", "distance", "gradient_scale", "boundary_distance"):
            if name in cls.__dict__:
                setattr(cls, name, takes_tensor(cls.__dict__[name]))

    @takes_tensor
    def weights(self, eigenvalues: Tensor) -> Tensor:
        """Return the weights w = ``inverse(eigenvalues)``; raise an ArgumentError unless f(w) equals the
        eigenvalues.
        """
        w = self.inverse(eigenvalues)
        if type(w) is Tensor and not w.is_meta:
            reached = torch.isclose(self(w), eigenvalues.to(w), *_AGAIN)
            if not bool(reached.all()):
                raise ArgumentError("eigenvalues", f"what {self} can reach", float(eigenvalues[~reached][0]))
        return w

    @property
    def range(self) -> Interval:
        """Return the range of f, as an interval of eigenvalues (default: all real numbers)."""
        return Interval(-math.inf, math.inf)

    @property
    def note(self) -> str:
        """Return a note for users, or an empty text.

        A note says, for example, that the stability comes from a numerical search.
        """
        return "" if self._states_stability else _SEARCHED

    @property
    def _states_stability(self) -> bool:
        return type(self).is_stable is not Reparameterization.is_stable

    @takes_tensor
    def derivative(self, w: Tensor) -> Tensor:
        """Return the derivative f'(w), detached from the autograd graph of w; the default uses autograd."""
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self(leaf).sum(), leaf)
        return slope

    @takes_tensor
    def distance(self, w: Tensor) -> Tensor:
        """Return the distance of λ = f(w) from the stability boundary.

        The distance is -λ in continuous time and 1 - |λ| in discrete time.
        """
        return -self(w) if self.time == "continuous" else 1 - self(w).abs()

    @takes_tensor
    def gradient_scale(self, w: Tensor) -> Tensor:
        """Return the gradient scale G(w) = |f'(w)| / distance(w)², and 0 where f' = 0.

        Where λ is stable, the gradient of a loss with respect to w is at most G(w) times a constant that does not
        depend on the map. In continuous time G is |f'| / f² (StableSSM eq. 12). In discrete time it is
        |f'| / (1 - |f|)², because the terms of the sum in StableSSM eq. 91 are k|λ|^(k-1).
        """
        slope = self.derivative(w).abs()
        return torch.where(slope == 0, 0.0, slope / self.distance(w) ** 2)

    @takes_tensor
    def gradient_scale_published(self, w: Tensor) -> Tensor:
        """Return the gradient scale as printed in StableSSM, which is |f'| / (1 - f)² in discrete time (eq. 93).

        In discrete time the printed scale is too small for λ < 0, and :meth:`gradient_scale` is correct. In continuous
        time the two scales are equal.
        """
        ours = self.gradient_scale(w)
        if self.time == "continuous":
            return ours
        lam = self(w)
        return torch.where(lam < 0, self.derivative(w).abs() / (1 - lam) ** 2, ours)

    @property
    def is_stable(self) -> bool:
        """Return True if the map is stable, that is, if its stability modulus is finite (StableSSM, definition 3.2).

        The default is a search, not a proof. A map counts as stable if

        - λ is stable at about 400 weights in ``search_interval``, and does not touch the stability boundary between
          them,
        - λ is not unstable at 800 weights from the ends of this interval to ±1e6, at logarithmic distances,
        - and the stability modulus at β = 1 is not much larger near an end of the interval than in the middle half of
          the interval.

        If the stability of a map is proven, the class of the map replaces the search by ``is_stable: ClassVar[bool] =
        True``.
        """
        low, high = self.search_interval
        if bool((self.distance(modulus.grid(low, high)) <= 0).any()):
            return False
        if len(modulus.touching(self, (low, high))):
            return False
        far = modulus.far_grid(low, high)
        if bool((self.distance(far) < -_ROUNDING * far.abs()).any()):
            return False
        return not modulus.grows(self, (low, high))

    @property
    def modulus_tolerance(self) -> float:
        """Return the relative tolerance of ``stability_modulus``; 0 for a closed form.

        A modulus that comes from a search has this tolerance for β ≥ 1e-8. The search considers only weights in
        ``search_interval``.
        """
        return modulus.TOLERANCE

    @overload
    def stability_modulus(self, beta: float) -> float: ...
    @overload
    def stability_modulus(self, beta: Tensor) -> Tensor: ...
    @checked
    def stability_modulus(self, beta: float | Tensor) -> float | Tensor:
        """Return the stability modulus g(β): the largest relative change of the memory of a mode if its weight changes
        by at most β.

        This is the smallest function g(β) that satisfies StableSSM, definition 3.2. In continuous time (StableSSM
        eq. 9; the integral is |1/f(w̃) - 1/f(w)|)::

            g(β) = sup_w |f(w)| sup_{|w̃-w| ≤ β} ∫ |e^(f(w̃)t) - e^(f(w)t)| dt
                 = sup_w sup_{|w̃-w| ≤ β} |f(w)/f(w̃) - 1|

        In discrete time (by analogy, since the paper defines it for continuous time only)::

            g(β) = sup_w (1 - |f(w)|) sup_{|w̃-w| ≤ β} Σ_k |f(w̃)^k - f(w)^k|

        g(0) = 0, and g is infinite for every β > 0 if the map is not stable.
        """
        if isinstance(beta, Tensor):
            values = [self.stability_modulus(float(b)) for b in beta.flatten()]
            return torch.tensor(values, dtype=beta.dtype, device=beta.device).reshape(beta.shape)
        if real_number("beta", beta, 0, include_low=True) == 0:
            return 0.0
        if not self.is_stable:
            return math.inf
        return self._modulus(beta)

    def _modulus(self, beta: float) -> float:
        """Compute ``stability_modulus`` of a stable map for β > 0; the default is a search over ``search_interval``."""
        return modulus.search(self, beta, self.search_interval)

    @takes_tensor
    def boundary_distance(self, w: Tensor) -> Tensor:
        """Return the distance from a weight w to the nearest weight whose eigenvalue is unstable.

        See StableSSM, remark B.1. ``distance`` is a distance of eigenvalues; ``boundary_distance`` is a distance of
        weights, which training and rounding change.

        The result is 0 if f(w) itself is not strictly stable, and infinite if the class of the map sets ``is_stable``
        to True. Otherwise the distance is computed in closed form or by a search, which ends at weights of ±1e6.
        """
        proven = self._states_stability and self.is_stable
        return torch.full_like(w, math.inf) if proven else self._boundary_distance(w)

    @torch.no_grad()
    def _boundary_distance(self, w: Tensor) -> Tensor:
        """Compute ``boundary_distance`` for a map that is not known to be stable; the default searches weights from
        -1e6 to 1e6.

        The search evaluates the map at about 1200 points, and at points around each weight. Between neighboring points
        of which only one is unstable, bisection finds the end of the interval of unstable weights. At each local
        minimum of the distance between λ and the stability boundary, the search checks whether λ touches the boundary.
        If the map jumps, the search finds each interval of unstable weights that is wider than a tenth of its distance
        from w. The result is at most the distance from w to the ends of the search, -1e6 and 1e6.
        """
        interval = self.search_interval
        points = torch.cat([modulus.grid(*interval), modulus.far_grid(*interval)])
        points = torch.cat([points, modulus.close_grid(w, float(points.min()), float(points.max()))]).unique()
        unstable = ~(self.distance(points) > 0)  # NaN counts as unstable
        crossed = unstable[1:] != unstable[:-1]
        bad = torch.where(unstable[1:], points[1:], points[:-1])[crossed]
        good = torch.where(unstable[1:], points[:-1], points[1:])[crossed]
        for _ in range(60):
            middle = (good + bad) / 2
            stable = self.distance(middle) > 0
            good, bad = torch.where(stable, middle, good), torch.where(stable, bad, middle)
        touched = modulus.touching(self, interval, beyond=True)
        ends = torch.cat([points[:1], points[-1:], points[unstable], bad, touched]).sort().values.to(w.device)
        wide = w.double().contiguous()
        above = torch.searchsorted(ends, wide).clamp(1, len(ends) - 1)
        nearest = torch.minimum(ends[above] - wide, wide - ends[above - 1]).clamp(min=0)
        return torch.where(self.distance(wide) > 0, nearest, 0.0).to(w.dtype)

    def _require_in_range(self, eigenvalues: Tensor) -> None:
        if not eigenvalues.is_floating_point():
            raise ArgumentError("eigenvalues", "a real floating-point tensor", eigenvalues.dtype)
        if eigenvalues.is_meta:  # deferred initialization: there are no values yet
            return
        outside = eigenvalues[~self.range.holds(eigenvalues)]
        if outside.numel():
            worst = float(outside[0])
            raise ArgumentError("eigenvalues", f"values in {self.range} ({self._remedy(worst)})", f"{worst:.9g}")

    def _remedy(self, value: float) -> str:
        if self.time == "continuous":
            return "map 'exp' reaches every value < 0" if value < 0 else "stable means λ < 0"
        return "map 'tanh' reaches every value in (-1, 1)" if abs(value) < 1 else "stable means |λ| < 1"

    def __repr__(self) -> str:
        options = "".join(f"{key}={value!r}, " for key, value in vars(self).items())
        return f"{self.name}({options}time={self.time!r})"

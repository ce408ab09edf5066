"""Perturbation errors of models of increasing width, and a verdict on stable approximation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, final

import numpy as np
from torch import Tensor, nn

from stablessm._arguments import real_number
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.perturbation import PerturbationCurve, Sweep

MARGIN = 0.1
"""Smallest relative difference of errors that counts in a verdict, since a search finds only lower bounds."""
SETTLED = 0.8
"""A crossing moves if its radius falls below this multiple of the radius at the previous width. Errors settle if each
difference is below this multiple of the previous difference."""
STEEP = 4.0
"""An error that grows faster than this power of β counts as a jump; errors of stable models grow like β or β²."""


@final
@dataclass(frozen=True, repr=False)
class Crossing(Result):
    """The perturbation radii β at which a wider model starts to have a larger perturbation error than a narrower model.

    ``narrow`` and ``wide`` are the widths of the two models.
    """

    narrow: int
    wide: int
    radii: tuple[float, ...]
    """Every β at which E_wide(β) overtakes E_narrow(β); may be empty."""


@final
@dataclass(frozen=True, repr=False)
class StabilityVerdict(Result):
    """A verdict on whether a family of models with finite widths approximates its target stably."""

    stable: bool | None
    """True, False, or None if undecided."""
    radius: float
    """Largest β₀ up to which the curves support stability; 0 if they do not support it."""
    evidence: tuple[str, ...]


@final
@dataclass(frozen=True, repr=False)
class Extrapolation(Result):
    """An estimate of E(β), the limit of the perturbation errors E_m(β) for large widths m, from finite widths."""

    error: np.ndarray
    """Estimate of the limit at each radius (R,)."""
    uncertainty: np.ndarray
    """Distance of the estimate from the widest model, or between the two widest models (R,); ∞ where errors grow."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class PerturbationFamily(Result):
    """The perturbation curves of models of increasing width for the same target, at the same radii.

    >>> import stablessm as ssm
    >>> models = {m: ssm.RealSSM(1, m, 1) for m in (2, 4, 8)}
    >>> family = PerturbationFamily.of(models, ssm.RealSSM(1, 32, 1), [0.0, 0.1], horizon=50)
    >>> family.widths, family.errors.shape, len(family.crossings())
    ((2, 4, 8), (3, 2), 2)
    """

    curves: Mapping[int, PerturbationCurve]

    def __post_init__(self) -> None:
        object.__setattr__(self, "curves", dict(sorted(self.curves.items())))
        if not self.curves:
            raise ArgumentError("curves", "one or more widths", "none")
        for width, curve in self.curves.items():
            if not np.array_equal(curve.radius, self.radius):
                raise ArgumentError("curves", "the same radii for every width", f"others at width {width}")

    @classmethod
    def of(
        cls, models: Mapping[int, nn.Module], target: Any, radii: Sequence[float] | np.ndarray | Tensor, **options: Any
    ) -> Self:
        """Measure the perturbation curves of models; ``models`` maps each width to a model of this width.

        ``options`` are options of ``perturbation_error``.

        On a GPU the errors for all random perturbations, radii and widths are computed together, in chunks of a
        gigabyte. Narrow models are padded with zeros if that does not change their outputs.
        """
        return cls(dict(zip(models, Sweep(**options).curves(list(models.values()), target, radii), strict=True)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the widths of the models in increasing order."""
        return tuple(self.curves)

    @property
    def radius(self) -> np.ndarray:
        """Return the radii β of the perturbation curves as an array."""
        return next(iter(self.curves.values())).radius

    @property
    def errors(self) -> np.ndarray:
        """Return the errors E_m(β) that the search found, as an array (widths, radii)."""
        return np.stack([curve.lower for curve in self.curves.values()])

    def crossings(self, margin: float = 0.0) -> list[Crossing]:
        """Return, for consecutive widths, the radii at which the wider model becomes worse than the narrower model.

        The error of the wider model must exceed (1 + margin) times the error of the narrower model. Between radii both
        errors are interpolated linearly on logarithmic axes, or in β itself between 0 and the first positive radius.
        """
        pairs = pairwise(zip(self.widths, self.errors, strict=True))
        return [
            Crossing(narrow, wide, tuple(_overtakes(self.radius, low, high, margin)))
            for (narrow, low), (wide, high) in pairs
        ]

    @property
    def extrapolated(self) -> Extrapolation:
        """Return an estimate of the limit E(β) of infinite width for each radius, including β = 0.

        The estimate is Aitken's Δ² method over the last three widths if their errors approach a limit geometrically, as
        a power of m does when widths double. Otherwise it is the error of the widest model.
        """
        errors = self.errors
        last = errors[-1]
        if len(errors) < 2:
            return Extrapolation(last, np.full_like(last, np.inf))
        with np.errstate(invalid="ignore", divide="ignore"):
            step = last - errors[-2]
            before = errors[-2] - errors[-3] if len(errors) > 2 else np.full_like(last, np.nan)
            ratio = step / before
            settles = (ratio > 0) & (ratio < SETTLED)
            limit = np.where(settles, np.maximum(last + step * ratio / (1 - ratio), 0.0), last)
            grows = ~settles & ~(step <= 0)
            uncertainty = np.where(settles, np.abs(limit - last), np.where(grows, np.inf, np.abs(step)))
        return Extrapolation(limit, uncertainty)

    def verdict(self) -> StabilityVerdict:
        """Decide whether the family approximates its target stably (StableSSM definition 2.5, IAT figure 1).

        - Stable: E_m(0) decreases with m, and there is a β₀ > 0 up to which no wider model is worse than all narrower
          models and E does not jump in β.
        - Unstable: E_m(0) decreases, but the radius from which a wider model is worse than all narrower models
          decreases with every width, and does not settle.

        A wider model that is worse than only the previous model proves nothing: if E_m(0) decreases fast, errors at
        β > 0 may dip before they reach their limit. A verdict requires at least three widths. The verdict is not a
        proof, since only finite widths are measured.
        """
        radius, errors = self.radius, self.errors
        if len(errors) < 3 or radius[0] > 0:
            return StabilityVerdict(None, 0.0, ("a verdict requires three widths and the radius 0",))
        at_0 = " -> ".join(f"{error:.3g}" for error in errors[:, 0])
        if not errors[-1, 0] < (1 - MARGIN) * errors[:-1, 0].min():
            return StabilityVerdict(None, 0.0, (f"E_m(0) does not fall with the width: {at_0}",))
        records = [_overtakes(radius, errors[:m].max(0), errors[m], MARGIN) for m in range(1, len(errors))]
        first = np.array([min(crossed, default=np.inf) for crossed in records])
        evidence = (f"E_m(0) falls with the width: {at_0}", _worse(first))
        moving = first[-1] < SETTLED * first[-2]
        if moving and np.isfinite(first[-2:]).all() and (first[1:] < first[:-1]).all():
            return StabilityVerdict(False, 0.0, (*evidence, "these radii move toward 0"))
        reach = float(radius[radius <= min(first.min(), _before_jump(radius, errors[-1]))].max())
        if moving or reach == 0:
            return StabilityVerdict(
                None, 0.0, (*evidence, "these radii neither stay constant nor move toward 0 throughout")
            )
        return StabilityVerdict(
            True, reach, (*evidence, f"up to β = {reach:.3g} wider models are no worse and E does not jump")
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot E_m(β) for every width and the extrapolation (dashed), as in figure 1 of IAT and StableSSM."""
        ax = axes_or_new(ax, 5)
        positive = self.radius > 0
        for width, error in zip(self.widths, self.errors, strict=True):
            ax.loglog(self.radius[positive], error[positive], "o-", ms=3, label=f"m = {width}")
        ax.loglog(self.radius[positive], self.extrapolated.error[positive], "k--", lw=1, label="extrapolated")
        curve = next(iter(self.curves.values()))
        ax.set(xlabel=f"β  ({curve.weight_norm})", ylabel=f"E(β)  ({curve.norm})")
        ax.legend()
        return ax


def _overtakes(radius: np.ndarray, low: np.ndarray, high: np.ndarray, margin: float) -> list[float]:
    """Return every radius β at which the errors ``high`` start to exceed (1 + margin) times the errors ``low``."""
    low, high = (np.log(np.clip(error, np.finfo(float).tiny, np.finfo(float).max)) for error in (low, high))
    ahead = high - low - np.log1p(real_number("margin", margin, -1))
    crossed = [float(radius[0])] if ahead[0] > 0 else []
    for (r0, y0), (r1, y1) in pairwise(zip(radius, ahead, strict=True)):
        if y0 <= 0 < y1:
            part = -y0 / (y1 - y0)
            crossed.append(float(r0 * (r1 / r0) ** part if r0 > 0 else r1 * part))
    return crossed


def _worse(first: np.ndarray) -> str:
    """Return a sentence on the radii β above which a wider model is worse than all narrower models.

    ``first`` contains this radius for each width except the smallest; ∞ if there is no such radius.
    """
    if np.isinf(first).all():
        return "no wider model is worse than all narrower ones at any β"
    radii = ", ".join(f"{r:.3g}" if r < np.inf else "no β" for r in first)
    return f"a wider model is worse than all narrower ones from these β on: {radii}"


def _before_jump(radius: np.ndarray, error: np.ndarray) -> float:
    """Return the largest radius before a jump of the error, or the largest radius of all if there is no jump.

    A jump is a growth faster than β^STEEP between two consecutive positive radii.
    """
    for (r0, e0), (r1, e1) in pairwise(zip(radius, error, strict=True)):
        if r0 > 0 and not e1 <= e0 * (r1 / r0) ** STEEP:
            return float(r0)
    return float(radius[-1])

"""Fits sums of exponentials to memory kernels by least squares, and measures their perturbation errors (IAT, appendix
C).

In the functions below, ``kind`` is the kind of memory, such as ``polynomial``, and ``search`` is the method that
searches for the worst perturbation: random draws or gradient ascent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from stablessm._typing import Time
from stablessm.experiments.frame import Panel, Run, Stages, families, kept
from stablessm.instruments import PerturbationCurve, PerturbationFamily, perturbation_error
from stablessm.instruments.family import StabilityVerdict
from stablessm.layers import RealSSM
from stablessm.layers.initialize import timescales
from stablessm.targets import LinearFunctional

TARGETS = {
    "exponential": LinearFunctional(lambda t: 0.9**t),
    "polynomial": LinearFunctional("polynomial", exponent=1.1),
}
Search: TypeAlias = Literal["random", "ascent"]
SEARCHES: tuple[Search, ...] = ("random", "ascent")
SHORTEST = 0.6


@dataclass(frozen=True)
class SumConfig:
    """Settings of the experiments on exponential sums: widths, maps, horizons and perturbations. The defaults are as in
    IAT, figure 1.
    """

    maps: tuple[str, ...] = ("direct",)
    widths: tuple[int, ...] = (4, 8, 16, 32)
    horizons: tuple[int, ...] = (100, 1000)
    """The published horizon, and a horizon so long that sums of these widths cannot follow the power law to its end."""
    radii: tuple[float, ...] = (0.0, *(5e-4 * 2.0**k for k in range(21)))
    samples: int = 10
    steps: int = 40
    seed: int = 0


def fitted_layer(
    target: LinearFunctional, width: int, longest: float, horizon: int, map: str, time: Time = "continuous",
    scales: Tensor | None = None,
) -> RealSSM:  # fmt: skip
    """Return a layer whose kernel Σ c_i e^(λ_i t) is fitted to the target's kernel at t = 0, 1, …, ``horizon``. The
    time scales -1/λ_i are fixed; the coefficients c_i are the non-negative least-squares solution.

    ``scales`` are the time scales; by default they are spaced logarithmically up to ``longest``. IAT (appendix C) also
    fits the coefficients on a grid, but does not say which rates λ_i it uses. With non-negative coefficients Σ
    |c_i/λ_i| stays bounded as the width grows, which StableSSM (eq. 57) requires of a family of models.

    >>> layer = fitted_layer(TARGETS["exponential"], 8, 30.0, 100, "exp")
    >>> float((layer.kernel(torch.arange(100.0))[:, 0, 0] - 0.9 ** torch.arange(100)).abs().max()) < 0.02
    True
    """
    from scipy.optimize import nnls

    scales = timescales(width, SHORTEST, longest) if scales is None else scales
    rates, times = -1 / scales, torch.arange(horizon + 1, dtype=torch.float64)
    eigenvalues = rates if time == "continuous" else rates.exp()
    with torch.random.fork_rng(devices=[]):  # the random weights are replaced below
        layer = RealSSM(1, width, 1, map=map, time=time, bias=False, eigenvalues=eigenvalues).double()
    modes = torch.exp(rates * times[:, None]).numpy()
    with torch.no_grad():
        layer.w.copy_(layer.map.inverse(eigenvalues))  # in double precision
        layer.B.fill_(1)
        layer.C.copy_(torch.from_numpy(nnls(modes, target.kernel(times).flatten().numpy())[0]))
    return layer


def longest_time(kind: str, width: int) -> float:
    """Return the longest time scale among the modes of a model of this width. For exponential memory this time scale is
    fixed; for polynomial memory it grows with the width.
    """
    return 30.0 if kind == "exponential" else 2 * width**1.5


@kept(PerturbationCurve, "{kind}-{map}-{horizon}-{width}-{search}")
def curve(
    config: SumConfig, run: Run, kind: str, map: str, horizon: int, width: int, search: Search
) -> PerturbationCurve:
    """Return the perturbation errors E_m(β) of the fitted layer of width m: the largest error after a perturbation of
    size β. Only the recurrent weights are perturbed.
    """
    layer = fitted_layer(TARGETS[kind], width, longest_time(kind, width), horizon, map)
    return perturbation_error(
        layer, TARGETS[kind], config.radii, norm="kernel_l1", parameters="recurrent", search=search,
        samples=config.samples, steps=config.steps, horizon=horizon, seed=config.seed, progress=False,
    )  # fmt: skip


def measure(config: SumConfig, run: Run, kinds: Iterable[str]) -> None:
    """Measure the perturbation errors E_m(β) for all given kinds of memory, and for all maps, horizons, searches and
    widths m of the settings.
    """
    for kind, map, horizon, search, m in product(kinds, config.maps, config.horizons, SEARCHES, config.widths):
        curve.compute(config, run, kind, map, horizon, m, search)


def family(config: SumConfig, stages: Stages, kind: str, map: str, horizon: int, search: Search) -> PerturbationFamily:
    """Return the perturbation errors E_m(β) of the fitted layers of all widths m as a :class:`PerturbationFamily`. All
    layers have the same map and are fitted to the same kind of memory; all errors come from the same horizon and
    search.
    """
    return PerturbationFamily({m: curve(stages, kind, map, horizon, m, search) for m in config.widths})


def verdicts(config: SumConfig, stages: Stages, kind: str, map: str) -> dict[str, StabilityVerdict]:
    """Return one verdict on stability per horizon and search method: do layers of growing width approximate the memory
    stably?
    """
    return {
        f"{horizon} steps, {search}": family(config, stages, kind, map, horizon, search).verdict()
        for horizon, search in product(config.horizons, SEARCHES)
    }


def panel(title: str, config: SumConfig, stages: Stages, kind: str, map: str, horizon: int) -> Panel:
    """Return a panel of the perturbation errors E_m(β) against β, with one line (gradient ascent) and one set of points
    (random draws) for each width m.
    """
    found = (family(config, stages, kind, map, horizon, search) for search in SEARCHES)
    return families.panel(title, found, f", {config.samples} random draws", y_range=(1e-4, 1e3))

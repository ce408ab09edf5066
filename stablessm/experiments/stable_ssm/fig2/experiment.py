"""Computes the gradient scales G of the maps, and the gradient-to-weight ratios G/|w|."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from stablessm import reparam
from stablessm._typing import Time
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.words import listed
from stablessm.layers.initialize import timescales
from stablessm.report.figure import Figure, Panel, Series

Option = tuple[str, dict[str, Any]]
BASIC: dict[str, Option] = {name: (name, {}) for name in ("direct", "relu", "exp", "softplus")}
MAPS: dict[Time, dict[str, Option]] = {
    "continuous": {**BASIC, "best": ("best", {})},
    "discrete": {**BASIC, "tanh": ("tanh", {}), "best, b = 0.5": ("best", {"b": 0.5}), "best, b = 1": ("best", {})},
}


@dataclass(frozen=True)
class ScaleConfig:
    """Settings of ``st-fig2``: grids of weights and time scales, and thresholds of the claims."""

    weights: int = 1000
    """Number of weights; an even number leaves out w = 0."""
    reach: float = 5.0
    """The grid of weights is from -reach to reach."""
    scales: int = 500
    shortest: float = 2.0
    longest: float = 1000.0
    """Longest time scale, in steps."""
    level: float = 1 + 1e-9
    """A ratio G/|w| that varies by less than this factor counts as constant."""
    uneven: float = 10.0
    """A ratio G/|w| that varies by more than this factor counts as not balanced."""
    mostly: float = 0.5
    """The claim that softplus has a smaller ratio than exp is partly true if it holds for more than this fraction of
    the time scales."""


@stage("{time}", over=lambda config: get_args(Time))
def measured(config: ScaleConfig, run: Run, time: Time) -> Mapping[str, Tensor]:
    """Return two grids, one of weights w (``weights``) and one of time scales (``scales``). Also return the ratio G/|w|
    (gradient scale over weight) of every map on both grids.
    """
    weights = torch.linspace(-config.reach, config.reach, config.weights, dtype=torch.float64)
    scales = timescales(config.scales, config.shortest, config.longest)
    eigenvalues = -1 / scales if time == "continuous" else torch.exp(-1 / scales)
    arrays = {"weights": weights, "scales": scales}
    for label, (name, options) in MAPS[time].items():
        f = reparam.get(name, time, **options)
        arrays |= {f"{label} weights": ratios(f, weights), f"{label} scales": ratios(f, f.inverse(eigenvalues))}
    return arrays


def ratios(f: reparam.Reparameterization, w: Tensor) -> Tensor:
    """Return G(w)/|w| (gradient scale over weight) in two versions, (2, weights): with G as this library derives it,
    and with G as published. The ratio is NaN where the eigenvalue λ is unstable or the map is constant.
    """
    scales = torch.stack([f.gradient_scale(w), f.gradient_scale_published(w)]) / w.abs()
    return torch.where((f.distance(w) > 0) & (scales > 0), scales, torch.nan)


def figures(config: ScaleConfig, stages: Stages) -> Figures:
    """Yield two figures, for continuous and for discrete time. Each figure has panels of G and G/|w| against the
    weight, and of G/|w| against the time scale.
    """
    for time, found in measured.all(config, stages).items():
        note = " Dotted: as published, where the formulas differ." if time == "discrete" else ""
        yield Figure(
            time,
            f"Gradient scale of the maps in {time} time, over weights (left, middle) and at equal eigenvalues (right)."
            + note,
            [
                panel(found, "gradient scale", "weights", "G(w)", (1e-3, 1e6)),
                panel(found, "gradient over weight", "weights", "G(w)/|w|", (1e-3, 1e6)),
                panel(found, "at the same eigenvalue", "scales", "G(w)/|w|", (1, 1e9)),
            ],
        )


def panel(found: Mapping[str, np.ndarray], title: str, grid: str, y: str, shown: tuple[float, float]) -> Panel:
    """Return a panel with one line per map. ``y`` selects the gradient scale (``G(w)``) or its ratio to the weight
    (``G(w)/|w|``); ``grid`` is the x axis (``weights`` or ``scales``), and ``shown`` is the range of the y axis. A
    dotted line shows the published formula where it differs from the formula of this library.
    """
    x, series = found[grid], []
    times = np.abs(x) if y == "G(w)" else np.ones_like(x)
    for label in (name.removesuffix(f" {grid}") for name in found if name.endswith(f" {grid}")):
        ours, published = found[f"{label} {grid}"]
        differs = ~np.isclose(ours, published, equal_nan=True)
        series.append(Series(label, x, times * ours, group=label))
        if differs.any():
            dotted = times * np.where(differs, published, np.nan)
            series.append(Series(f"{label} (published)", x, dotted, "dotted", label))
    if grid == "scales":
        return Panel(title, "time scale, in steps", y, series, "log", "log", shown)
    return Panel(title, "weight w", y, series, "linear", "log", shown)


def span(ratio: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest value of an array of ratios, ignoring NaN."""
    return float(np.nanmin(ratio)), float(np.nanmax(ratio))


def claims(config: ScaleConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts on the ratio G/|w| (gradient scale over weight): it is constant only for the map
    ``best``, and of the other maps, softplus has the smallest ratio.
    """
    for check in (balanced, unbalanced, milder):
        yield from (check(config, found, time) for time, found in measured.all(config, stages).items())


def balanced(config: ScaleConfig, found: Mapping[str, np.ndarray], time: Time) -> Claim:
    """Return a claim with its verdict: for the map ``best`` with the parameters a and b, the ratio G/|w| (gradient
    scale over weight) is 2a at all weights.
    """
    papers = "best" if time == "continuous" else "best, b = 0.5"
    (low, high), times = span(found[f"{papers} weights"][0]), span(found[f"{papers} scales"][0])
    level = high / low < config.level
    why = f"Over weights G/|w| is {low:.4g} to {high:.4g}, over time scales {times[0]:.4g} to {times[1]:.4g}."
    if not level and time == "discrete":
        off = np.abs(found["weights"][~np.isclose(found[f"{papers} weights"][0], 2)])
        printed, other = span(found[f"{papers} weights"][1]), span(found["best, b = 1 weights"][0])
        why += (
            f" The printed formula gives {printed[0]:.4g} to {printed[1]:.4g} but is too small for λ < 0 (erratum 4), "
            f"here up to |w| = {off.max(initial=0):.3g}; with b = 1 the ratio is {other[0]:.4g} to {other[1]:.4g}."
        )
    return Claim(
        f'{time} time: "best" keeps a balanced ratio',
        "G/|w| = 2a = 2 for every weight",
        f"{low:.4g} to {high:.4g} over weights ({papers})",
        rules.graded(level, times[1] / times[0] < config.level),
        why,
    )


def unbalanced(config: ScaleConfig, found: Mapping[str, np.ndarray], time: Time) -> Claim:
    """Return a claim with its verdict: for every map except ``best``, the ratio G/|w| (gradient scale over weight)
    depends on the time scale.
    """
    spans = {label: span(found[f"{label} scales"][0]) for label in MAPS[time] if not label.startswith("best")}
    factors = {label: high / low for label, (low, high) in spans.items()}
    return Claim(
        f"{time} time: the other maps do not keep a balanced ratio",
        "curves that are not level (no number)",
        f"largest over smallest ratio: {listed(factors, '.2g')}",
        rules.some([factor > config.uneven for factor in factors.values()]),
        f"For time scales from {config.shortest:g} to {config.longest:g} steps G/|w| goes "
        + ", ".join(f"from {low:.2g} to {high:.2g} ({label})" for label, (low, high) in spans.items())
        + f"; more than a factor {config.uneven:g} counts as unbalanced.",
    )


def milder(config: ScaleConfig, found: Mapping[str, np.ndarray], time: Time) -> Claim:
    """Return a claim with its verdict: at the same eigenvalue, the ratio G/|w| (gradient scale over weight) is smaller
    for softplus than for exp.
    """
    relative = {name: found["softplus scales"][0] / found[f"{name} scales"][0] for name in ("direct", "exp")}
    shares = {name: float((r < 1).mean()) for name, r in relative.items()}
    last = {name: float(found["scales"][r >= 1].max(initial=0)) for name, r in relative.items()}
    return Claim(
        f"{time} time: softplus is milder than direct and exp",
        "generally milder (no number)",
        ", ".join(f"smaller ratio than {name} at {share:.0%} of the time scales" for name, share in shares.items()),
        rules.graded(min(shares.values()) == 1, min(shares.values()) > config.mostly),
        "At the same eigenvalue softplus has "
        + ", ".join(f"{r.min():.3g} to {r.max():.3g} times the ratio of {name}" for name, r in relative.items())
        + "; softplus has the larger ratio "
        + ", ".join(f"up to a time scale of {t:.3g} ({name})" if t else f"nowhere ({name})" for name, t in last.items())
        + ".",
    )


run = computing(measured)
SMOKE = ScaleConfig(weights=100, scales=50)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=ScaleConfig(), minutes=(0.05, 0.1))

"""Measures perturbation errors of models with polynomial memory, with and without stable maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Run, Stages, described, rules
from stablessm.experiments.frame.families import stability
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.experiments.iat.exponential_sums import SumConfig, family, measure, panel, verdicts
from stablessm.instruments import PerturbationFamily

CONTRAST = "direct"


@dataclass(frozen=True)
class Config(SumConfig):
    """Settings of ``ia-fig4``: maps and the options of the perturbations. The defaults are as in IAT, figure 4."""

    maps: tuple[str, ...] = (CONTRAST, "exp", "softplus")
    slack: float = 1.1
    """The error increase at the smallest radius counts as not growing up to this multiple of the narrowest model's
    increase."""


def run(config: SumConfig, run: Run) -> None:
    """Measure the perturbation errors of all maps and widths."""
    measure(config, run, ["polynomial"])


def figures(config: SumConfig, stages: Stages) -> Figures:
    """Yield one figure per horizon, with the published panels and a panel for the direct map. Then yield a figure that
    shows how much a perturbation of the smallest radius increases the error.
    """
    costs, label = [], f"E_m({config.radii[1]:g}) − E_m(0)"
    for horizon in config.horizons:
        yield Figure(
            f"perturbation-{horizon}",
            f"Perturbation error over {horizon} steps of the same exponential sums, fitted to 1/(t+1)^1.1, under the "
            f"maps {', '.join(config.maps)}. Lines: the worst weights that gradient ascent finds; points: random "
            "draws, as published.",
            [panel(f"{map} map", config, stages, "polynomial", map, horizon) for map in config.maps],
        )
        found = {map: cost(climbed(config, stages, map, horizon)) for map in config.maps}
        costs.append(Panel(f"{horizon} steps", "width m", label, lines(config.widths, found, "both"), "log", "log"))
    smallest = f"The cost of the smallest radius, {label}, against the width."
    yield Figure("cost", f"{smallest} If the limit E(β) is continuous, the curves do not rise.", costs)


def climbed(config: SumConfig, stages: Stages, map: str, horizon: int) -> PerturbationFamily:
    """Return the perturbation errors for polynomial memory that gradient ascent found. These errors are larger than the
    errors that random draws find.
    """
    return family(config, stages, "polynomial", map, horizon, "ascent")


def cost(curves: PerturbationFamily) -> np.ndarray:
    """Return for each model, (widths,), how much a perturbation of the smallest positive radius increases its error:
    the error at this radius minus the error at β = 0.
    """
    return curves.errors[:, 1] - curves.errors[:, 0]


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts on every stable map: models with this map approximate the target stably; their
    errors stay bounded at radii at which the errors with the direct map explode; and the limit of the errors for large
    widths is continuous at β = 0.
    """
    stable = [map for map in config.maps if map != CONTRAST]
    for map in stable:
        found = verdicts(config, stages, "polynomial", map)
        statement = f"{map}: polynomial memory has a stable approximation"
        yield stability(statement, "stable: the limiting curve E(β) is continuous", found)
    for check in (boundedness, continuity):
        yield from (check(config, stages, map) for map in stable)


def boundedness(config: Config, stages: Stages, map: str) -> Claim:
    """Return a claim with its verdict: the theoretical bound on the perturbation errors with the stable map is finite,
    and the perturbation errors with the direct map exceed this bound.
    """
    ours, whys, kept = [], [], []
    for horizon in config.horizons:
        curves, direct = (climbed(config, stages, name, horizon) for name in (map, CONTRAST))
        bound = max(np.inf if c.upper is None else float(c.upper.max()) for c in curves.curves.values())
        passed = [float(direct.radius[error > bound].min(initial=np.inf)) for error in direct.errors]
        kept.append(bool(np.isfinite([bound, *passed]).all()))
        at = direct.radius == max(passed)
        worst = [f"{errors[:, at].max():.2g}" if at.any() else "—" for errors in (curves.errors, direct.errors)]
        ours.append(
            f"{horizon} steps: at most {bound:.4g} up to β = {config.radii[-1]:g}, direct {direct.errors.max():.2g}"
        )
        whys.append(
            f"Over {horizon} steps direct exceeds that bound from β = {listed(passed)} on (m = {config.widths[0]} to "
            f"{config.widths[-1]}); at β = {max(passed):.3g} the largest errors found are {worst[0]} ({map}) and "
            f"{worst[1]} (direct)."
        )
    statement = f"{map}: E_m(β) stays bounded where direct explodes"
    return Claim(statement, "bounded curves (no number)", "; ".join(ours), rules.some(kept), " ".join(whys))


def continuity(config: Config, stages: Stages, map: str) -> Claim:
    """Return a claim with its verdict: with the stable map, the limit of E_m(β) for large widths m is continuous at β =
    0.

    The evidence is how much a perturbation of the smallest radius increases the error. With growing width this increase
    does not grow for the stable map, and it grows for the direct map.
    """
    ours, kept = [], []
    for horizon in config.horizons:
        costs = {name: cost(climbed(config, stages, name, horizon)) for name in (map, CONTRAST)}
        grows = {name: bool(found[-1] > config.slack * found[0]) for name, found in costs.items()}
        kept.append((not grows[map], grows[CONTRAST]))
        rows = "; ".join(f"{name} {listed(found, '.2g', ' → ')}" for name, found in costs.items())
        ours.append(f"{horizon} steps: {rows}")
    flat, up = (all(column) for column in zip(*kept, strict=True))
    return Claim(
        f"{map}: the limit is continuous at β = 0",
        "continuous; with a direct map it jumps",
        f"E_m({config.radii[1]:g}) − E_m(0) over {', '.join(ours)}",
        rules.graded(flat and up, flat),
        f"From m = {config.widths[0]} to {config.widths[-1]} the cost of the smallest radius "
        f"{'falls or stays' if flat else 'rises'} with {map} and {'rises' if up else 'does not rise everywhere'} with "
        "direct.",
    )


SMOKE = Config(widths=(4, 8, 16), horizons=(100,), radii=(0.0, 1e-3, 1e-1, 1.0, 10.0), samples=3, steps=5)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.05, 1.0))

"""Perturbation errors of models with polynomial memory, with and without stable maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.iat.exponential_sums import SEARCHES, SumConfig, family, measure_family, panel
from stablessm.experiments.iat.fig1.experiment import said
from stablessm.instruments import PerturbationFamily
from stablessm.report.figure import Figure, Panel, Series

CONTRAST = "direct"


@dataclass(frozen=True)
class Config(SumConfig):
    """Sizes of the experiment. The defaults are the sizes in IAT, figure 4."""

    maps: tuple[str, ...] = (CONTRAST, "exp", "softplus")
    slack: float = 1.1
    """A cost that is at most this many times the narrowest model's has not grown."""


def run(config: SumConfig, run: Run) -> None:
    """Measure every curve."""
    for map in config.maps:
        for horizon in config.horizons:
            for search in SEARCHES:
                measure_family(config, run, "polynomial", map, horizon, search)


def figures(config: SumConfig, stages: Stages) -> list[Figure]:
    """Return the panels of the paper, the direct map for comparison, and the cost of the smallest radius."""
    names = ", ".join(config.maps)
    curves = [
        Figure(
            f"perturbation-{horizon}",
            f"Perturbation error over {horizon} steps of the same exponential sums, fitted to 1/(t+1)^1.1, under the "
            f"maps {names}. Lines: the worst weights that gradient ascent finds; points: random draws, as published.",
            [panel(f"{map} map", config, stages, "polynomial", map, horizon) for map in config.maps],
        )
        for horizon in config.horizons
    ]
    costs = [
        Panel(
            f"{horizon} steps",
            "width m",
            f"E_m({config.radii[1]:g}) − E_m(0)",
            [
                Series(map, list(config.widths), cost(climbed(config, stages, map, horizon)).tolist(), "both")
                for map in config.maps
            ],
            "log",
            "log",
        )
        for horizon in config.horizons
    ]
    smallest = f"The cost of the smallest radius, E_m({config.radii[1]:g}) − E_m(0), against the width."
    return [*curves, Figure("cost", f"{smallest} If the limit E(β) is continuous, the curves do not rise.", costs)]


def climbed(config: SumConfig, stages: Stages, map: str, horizon: int) -> PerturbationFamily:
    """Return the family measured by ascent, the better of the two searches."""
    return family(config, stages, "polynomial", map, horizon, "ascent")


def cost(curves: PerturbationFamily) -> np.ndarray:
    """Return the increase of the error at the smallest positive radius, (widths,)."""
    return curves.errors[:, 1] - curves.errors[:, 0]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check for each stable map that it is stable, bounded where direct explodes, and continuous at 0."""
    stable = [map for map in config.maps if map != CONTRAST]
    return [check(config, stages, map) for check in (stability, boundedness, continuity) for map in stable]


def stability(config: Config, stages: Stages, map: str) -> Claim:
    """Check that the family of widths is stable, for every horizon and search."""
    verdicts = {
        f"{horizon} steps, {search}": family(config, stages, "polynomial", map, horizon, search).verdict()
        for horizon in config.horizons
        for search in SEARCHES
    }
    agree = [verdict.stable for verdict in verdicts.values()]
    return Claim(
        f"{map}: polynomial memory has a stable approximation",
        "stable: the limiting curve E(β) is continuous",
        "; ".join(f"{name}: {said(verdict)}" for name, verdict in verdicts.items()),
        rules.some(agree),
        " ".join(f"{name}: {'; '.join(verdict.evidence)}." for name, verdict in verdicts.items()),
    )


def boundedness(config: Config, stages: Stages, map: str) -> Claim:
    """Check that the proven bound is finite, and that the errors of the direct map exceed it."""
    ours, whys, kept = [], [], []
    for horizon in config.horizons:
        curves, direct = climbed(config, stages, map, horizon), climbed(config, stages, CONTRAST, horizon)
        bound = max(np.inf if c.upper is None else float(c.upper.max()) for c in curves.curves.values())
        passed = [float(direct.radius[error > bound].min(initial=np.inf)) for error in direct.errors]
        kept.append(bool(np.isfinite([bound, *passed]).all()))
        ours.append(
            f"{horizon} steps: at most {bound:.4g} up to β = {config.radii[-1]:g}, direct {direct.errors.max():.2g}"
        )
        at = direct.radius == max(passed)
        worst = [f"{errors[:, at].max():.2g}" if at.any() else "—" for errors in (curves.errors, direct.errors)]
        radii = ", ".join(f"{radius:.3g}" for radius in passed)
        whys.append(
            f"Over {horizon} steps direct exceeds that bound from β = {radii} on (m = {config.widths[0]} to "
            f"{config.widths[-1]}); at β = {max(passed):.3g} the largest errors found are {worst[0]} ({map}) and "
            f"{worst[1]} (direct)."
        )
    return Claim(
        f"{map}: E_m(β) stays bounded where direct explodes",
        "bounded curves (no number)",
        "; ".join(ours),
        rules.some(kept),
        " ".join(whys),
    )


def continuity(config: Config, stages: Stages, map: str) -> Claim:
    """Check that the cost of the smallest radius falls with the width, and rises with the direct map."""
    ours, kept = [], []
    for horizon in config.horizons:
        costs = {name: cost(climbed(config, stages, name, horizon)) for name in (map, CONTRAST)}
        grows = {name: bool(found[-1] > config.slack * found[0]) for name, found in costs.items()}
        kept.append((not grows[map], grows[CONTRAST]))
        listed = "; ".join(f"{name} " + " → ".join(f"{c:.2g}" for c in found) for name, found in costs.items())
        ours.append(f"{horizon} steps: {listed}")
    rise = ["falls or stays" if all(flat for flat, _ in kept) else "rises"]
    rise.append("rises" if all(up for _, up in kept) else "does not rise everywhere")
    return Claim(
        f"{map}: the limit is continuous at β = 0",
        "continuous; with a direct map it jumps",
        f"E_m({config.radii[1]:g}) − E_m(0) over {', '.join(ours)}",
        rules.graded(bool(np.all(kept)), all(flat for flat, _ in kept)),
        f"From m = {config.widths[0]} to {config.widths[-1]} the cost of the smallest radius {rise[0]} with {map} and "
        f"{rise[1]} with direct.",
    )


EXPERIMENT = Experiment(
    id="ia-fig4",
    title="Polynomial memory with stable maps",
    source="IAT, figure 4",
    question="Does a stable map of the recurrent weights make the approximation of a polynomial memory stable?",
    claim="With exponential and softplus reparameterization E(β) is continuous; with direct weights it is not.",
    configs={
        "smoke": Config(
            widths=(4, 8, 16),
            horizons=(100,),
            radii=(0.0, 1e-3, 1e-1, 1.0, 10.0),
            samples=3,
            steps=5,
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.05, "paper": 1.0},
    run=run,
    figures=figures,
    claims=claims,
)

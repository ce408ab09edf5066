"""Measures perturbation errors of linear models with the direct map, for exponential and for polynomial memory."""

from __future__ import annotations

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claims, Figure, Figures, Run, Stages, described
from stablessm.experiments.frame.families import stability
from stablessm.experiments.iat.exponential_sums import TARGETS, SumConfig, measure, panel, verdicts

CLAIMS = {
    "exponential": (True, "stable: E(β) is continuous up to some β₀ > 0"),
    "polynomial": (False, "unstable: the crossings of the curves move left as m grows"),
}


def run(config: SumConfig, run: Run) -> None:
    """Measure the perturbation errors of all models for exponential and for polynomial memory."""
    if config.maps != ("direct",):
        raise ArgumentError("--set maps", "direct, the only map of this experiment", ", ".join(config.maps))
    measure(config, run, TARGETS)


def figures(config: SumConfig, stages: Stages) -> Figures:
    """Yield one figure per horizon, with the two panels of the published figure: exponential and polynomial memory."""
    for horizon in config.horizons:
        yield Figure(
            f"perturbation-{horizon}",
            f"Perturbation error over {horizon} steps of exponential sums fitted to 0.9^t (left) and 1/(t+1)^1.1 "
            "(right). Lines: the worst weights that gradient ascent finds; points: random draws, as published.",
            [panel(f"{kind} memory", config, stages, kind, "direct", horizon) for kind in TARGETS],
        )


def claims(config: SumConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: exponential memory is approximated stably, and polynomial memory is not."""
    for kind, (stable, says) in CLAIMS.items():
        statement = f"{kind} memory has {'a' if stable else 'no'} stable approximation"
        yield stability(statement, says, verdicts(config, stages, kind, "direct"), stable=stable)


SMOKE = SumConfig(widths=(4, 8, 16), horizons=(100,), radii=(0.0, 1e-3, 1e-2, 1e-1), samples=3, steps=5)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=SumConfig(), minutes=(0.1, 4.0))

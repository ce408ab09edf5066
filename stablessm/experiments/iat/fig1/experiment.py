"""Exponential and polynomial memory under perturbation, direct parameterization."""

from __future__ import annotations

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.iat.exponential_sums import SEARCHES, TARGETS, SumConfig, family, measure_family, panel
from stablessm.instruments.family import StabilityVerdict
from stablessm.report.figure import Figure

CLAIMS = {
    "exponential": (True, "stable: E(β) is continuous up to some β₀ > 0"),
    "polynomial": (False, "unstable: the crossings of the curves move left as m grows"),
}


def run(config: SumConfig, run: Run) -> None:
    """Measure every curve."""
    if config.maps != ("direct",):
        raise ArgumentError("--set maps", "direct, the only map of this experiment", ", ".join(config.maps))
    for kind in TARGETS:
        for horizon in config.horizons:
            for search in SEARCHES:
                measure_family(config, run, kind, "direct", horizon, search)


def figures(config: SumConfig, stages: Stages) -> list[Figure]:
    """Return the two panels of the paper."""
    return [
        Figure(
            f"perturbation-{horizon}",
            f"Perturbation error over {horizon} steps of exponential sums fitted to 0.9^t (left) and 1/(t+1)^1.1 "
            "(right). Lines: the worst weights that gradient ascent finds; points: random draws, as published.",
            [panel(f"{kind} memory", config, stages, kind, "direct", horizon) for kind in TARGETS],
        )
        for horizon in config.horizons
    ]


def claims(config: SumConfig, stages: Stages) -> list[Claim]:
    """Check that exponential memory is approximated stably and polynomial memory is not."""
    found = []
    for kind, (stable, says) in CLAIMS.items():
        verdicts = {
            f"{horizon} steps, {search}": family(config, stages, kind, "direct", horizon, search).verdict()
            for horizon in config.horizons
            for search in SEARCHES
        }
        agree = [None if verdict.stable is None else verdict.stable is stable for verdict in verdicts.values()]
        found.append(
            Claim(
                f"{kind} memory has {'a' if stable else 'no'} stable approximation",
                says,
                "; ".join(f"{name}: {said(verdict)}" for name, verdict in verdicts.items()),
                rules.some(agree),
                " ".join(f"{name}: {'; '.join(verdict.evidence)}." for name, verdict in verdicts.items()),
            )
        )
    return found


def said(verdict: StabilityVerdict) -> str:
    """Return a verdict in a few words."""
    if verdict.stable is None:
        return "undecided"
    return f"stable up to β = {verdict.radius:.2g}" if verdict.stable else "unstable"


EXPERIMENT = Experiment(
    id="ia-fig1",
    title="Linear memories under perturbation",
    source="IAT, figure 1",
    question="Which linear memories can linear RNNs of growing width approximate stably?",
    claim="Exponential memories are approximated stably; for polynomial ones the stability radius shrinks to 0.",
    configs={
        "smoke": SumConfig(widths=(4, 8, 16), horizons=(100,), radii=(0.0, 1e-3, 1e-2, 1e-1), samples=3, steps=5),
        "paper": SumConfig(),
    },
    minutes={"smoke": 0.1, "paper": 4.0},
    run=run,
    figures=figures,
    claims=claims,
)

"""Any convolution by one linear layer: the number of states, the limits of the error, and the output of the layer."""

from __future__ import annotations

from stablessm.experiments.frame import Experiment, Run, Stages
from stablessm.experiments.ssm_ua.conv import jackson
from stablessm.experiments.ssm_ua.conv import stages as measured
from stablessm.experiments.ssm_ua.conv.claims import claims
from stablessm.report.figure import Figure, Panel, Series

GROUPS = {
    "three exponentials": "other decays",
    "stretched exponential": "other decays",
    "damped cosine": "oscillations and a shift",
    "airy": "oscillations and a shift",
    "shift": "oscillations and a shift",
}
"""Titles of panels; other kernels are power laws."""


def run(config: measured.ConvConfig, run: Run) -> None:
    """Compute every kernel by order and by tolerance, the rates, and the comparison with training."""
    for name in config.kernels:
        measured.measure_by_order(config, run, name)
        measured.measure_by_tolerance(config, run, name)
    for name in jackson.KERNELS:
        measured.measure_rate(config, run, name)
    measured.measure_trained(config, run)


def figures(config: measured.ConvConfig, stages: Stages) -> list[Figure]:
    """Return figures of the sup error with the Hankel limit, and of the L¹ error with the Jackson rate, against m."""
    groups: dict[str, list[Series]] = {}
    for name in config.kernels:
        found, orders = measured.by_order(stages, name), list(config.orders)
        lines = groups.setdefault(GROUPS.get(name, "power laws"), [])
        lines.append(Series(name, orders, found["error"].tolist(), "both", group=name))
        lines.append(Series(f"{name}, σ_(m+1)", orders, found["sigma"][orders].tolist(), "dashed", group=name))
        if name == measured.PROOF:
            lines.append(Series(f"{name}, polynomials of the proof", orders, found["proof"].tolist(), "dotted"))
    y_range = (1e-20, 30.0)  # leaves room for the legend
    panels = [Panel(title, "m", "sup |ρ - ρ̂|", lines, "linear", "log", y_range) for title, lines in groups.items()]
    rates = []
    for name in jackson.KERNELS:
        found, orders = measured.rate(stages, name), list(config.jackson_orders)
        lines = [Series("ours", orders, found["ours"].tolist(), "both")]
        for alpha, proof, bound in zip(config.alphas, found["proof"], found["bound"], strict=True):
            lines.append(Series(f"polynomials, α = {alpha}", orders, proof.tolist(), "solid", group=f"α = {alpha}"))
            lines.append(Series(f"bound, α = {alpha}", orders, bound.tolist(), "dashed", group=f"α = {alpha}"))
        rates.append(Panel(name, "m", "∫ |ρ - ρ̂| dt", lines, "log", "log"))
    return [
        Figure(
            "orders",
            f"The largest error over {config.horizon} steps of a sum of exponentials with m states, and the Hankel "
            "singular value σ_(m+1) (dashed), a lower bound of the ℓ¹ error of any sum.",
            panels,
        ),
        Figure(
            "jackson",
            "The L¹ error in continuous time: our sums, the polynomials in e^(-βt/(α+1)) of the proof of theorem A.3 "
            f"(β = {measured.BETA:g}), and its upper bound (dashed).",
            rates,
        ),
    ]


EXPERIMENT = Experiment(
    id="su-conv",
    title="Any convolution by one layer",
    source="SSM-UA, proposition 3.2; IAT, theorem A.3",
    question="How many states does one linear layer need for a convolution, and what limits it?",
    claim="For every kernel and every ε there is a width m with sup |ρ - ρ̂| < ε.",
    configs={
        "smoke": measured.ConvConfig(
            kernels=("power 1.1", "three exponentials", "damped cosine", "shift"),
            horizon=160,
            orders=(2, 4, 8),
            tolerances=(1e-2, 1e-4),
            alphas=(1, 2),
            jackson_orders=(2, 4, 8),
            jackson_steps=200,
            trained_orders=(4, 8),
        ),
        "paper": measured.ConvConfig(),
    },
    minutes={"smoke": 0.1, "paper": 1},
    run=run,
    figures=figures,
    claims=claims,
)

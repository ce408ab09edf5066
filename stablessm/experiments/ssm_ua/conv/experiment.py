"""Approximates convolutions by one linear layer: the number of states it needs, bounds on the error of its kernel, and
the error of its output.
"""

from __future__ import annotations

from stablessm.experiments.frame import Figure, Figures, Panel, Series, Stages, computing, described
from stablessm.experiments.ssm_ua.conv import stages as measured
from stablessm.experiments.ssm_ua.conv.claims import claims

GROUPS = {
    "three exponentials": "other decays",
    "stretched exponential": "other decays",
    "damped cosine": "oscillations and a shift",
    "airy": "oscillations and a shift",
    "shift": "oscillations and a shift",
}
"""Titles of panels; other kernels are power laws."""


def figures(config: measured.ConvConfig, stages: Stages) -> Figures:
    """Yield figures of two errors of the kernel against the number m of exponentials: the largest error, with a lower
    bound from Hankel singular values, and the L¹ error, with an upper bound from Jackson's inequality.
    """
    groups: dict[str, list[Series]] = {}
    orders = list(config.orders)
    for name, found in measured.by_order.all(config, stages).items():
        lines = groups.setdefault(GROUPS.get(name, "power laws"), [])
        lines.append(Series(name, orders, found["error"], "both", group=name))
        lines.append(Series(f"{name}, σ_(m+1)", orders, found["sigma"][orders], "dashed", group=name))
        if name == measured.PROOF:
            lines.append(Series(f"{name}, polynomials of the proof", orders, found["proof"], "dotted"))
    y_range = (1e-20, 30.0)  # leaves room for the legend
    yield Figure(
        "orders",
        f"The largest error over {config.horizon} steps of a sum of exponentials with m states, and the Hankel "
        "singular value σ_(m+1) (dashed), a lower bound of the ℓ¹ error of any sum.",
        [Panel(title, "m", "sup |ρ - ρ̂|", lines, "linear", "log", y_range) for title, lines in groups.items()],
    )
    panels = []
    for name, found in measured.rate.all(config, stages).items():
        lines = [Series("ours", config.jackson_orders, found["ours"], "both")]
        for alpha, proof, bound in zip(config.alphas, found["proof"], found["bound"], strict=True):
            group = f"α = {alpha}"
            lines.append(Series(f"polynomials, {group}", config.jackson_orders, proof, "solid", group))
            lines.append(Series(f"bound, {group}", config.jackson_orders, bound, "dashed", group))
        panels.append(Panel(name, "m", "∫ |ρ - ρ̂| dt", lines, "log", "log"))
    yield Figure(
        "jackson",
        "The L¹ error in continuous time: our sums, the polynomials in e^(-βt/(α+1)) of the proof of theorem A.3 "
        f"(β = {measured.BETA:g}), and its upper bound (dashed).",
        panels,
    )


run = computing(measured.by_order, measured.by_tolerance, measured.rate, measured.trained)
SMOKE = measured.ConvConfig(
    kernels=("power 1.1", "three exponentials", "damped cosine", "shift"), horizon=160, orders=(2, 4, 8),
    tolerances=(1e-2, 1e-4), alphas=(1, 2), jackson_orders=(2, 4, 8), jackson_steps=200, trained_orders=(4, 8),
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=measured.ConvConfig(), minutes=(0.1, 1))

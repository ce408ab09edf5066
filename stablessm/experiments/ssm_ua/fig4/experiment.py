"""Computes Volterra series by recurrences, and measures their width and error for sequences of several lengths (SSM-UA,
proposition 3.9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from stablessm._errors import ArgumentError
from stablessm.constructions.series.model import VolterraSSM
from stablessm.constructions.series.volterra import volterra
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.report.figure import Figure, Panel

Kernel = Callable[..., np.ndarray]

KERNELS: dict[str, tuple[int, Kernel]] = {
    "beat": (2, lambda a, b: np.exp(-(a + b) / 20) * np.cos((a - b) / 7)),
    "power-law": (2, lambda a, b: (1 + a + b) ** -2.0),
    "kink": (2, lambda a, b: np.exp(-np.abs(a - b) / 10 - (a + b) / 40)),
    "triple-beat": (
        3,
        lambda a, b, c: np.exp(-(a + b + c) / 20) * np.cos((a - b) / 7) * np.cos((b - c) / 7) * np.cos((c - a) / 7),
    ),
    "triple-power-law": (3, lambda a, b, c: (1 + a + b + c) ** -2.5),
}
"""Order and kernel; none of them is a product of functions of one time."""

FORMULAS = {
    "beat": "e^(-(a+b)/20) cos((a-b)/7)",
    "power-law": "(1+a+b)^-2",
    "kink": "e^(-|a-b|/10 - (a+b)/40)",
    "triple-beat": "e^(-(a+b+c)/20) cos((a-b)/7) cos((b-c)/7) cos((c-a)/7)",
    "triple-power-law": "(1+a+b+c)^-2.5",
}
WHOLE = 2_000_000  # a grid with at most this many values is compared completely
BLOCK = 4_000_000  # number of kernel values computed at once


@dataclass(frozen=True)
class VolterraConfig:
    """Settings of ``su-fig4``: kernels, lengths, tolerance and thresholds. The paper has only a proof and a drawing."""

    kernels: tuple[str, ...] = tuple(KERNELS)
    lengths: tuple[int, ...] = (100, 1000, 10_000)
    tol: float = 1e-3
    outputs: int = 16
    """Number of inputs whose last output is compared with the sum over all pairs or triples."""
    seed: int = 0
    growth: float = 1.25
    """The width counts as independent of the length if it grows by at most this factor at the last step to a longer
    sequence."""
    scatter: float = 2.0
    """Largest ratio of an output error to the tolerance; the ratio may exceed 1 because output errors are random."""

    def __post_init__(self) -> None:
        if len(self.lengths) < 2 or list(self.lengths) != sorted(set(self.lengths)):
            raise ArgumentError("lengths", "two or more lengths in ascending order", self.lengths)


@stage("{name}-{length}", over=lambda config: product(config.kernels, config.lengths))
def built(config: VolterraConfig, run: Run, name: str, length: int) -> Mapping[str, Any]:
    """Build the model that computes one Volterra kernel over sequences of one length, and return its width and its
    errors.
    """
    order, kernel = KERNELS[name]
    model = volterra({order: kernel}, length, tol=config.tol)
    shorter = [steps for steps in config.lengths if steps < length and (steps + 1) ** order <= WHOLE]
    return {
        "states": model.states,
        "terms": model.rank[order],
        "width": model.width,
        "kernel": model.kernel_errors[order],
        "supremum": model.sup_errors[order],
        "thinned": model.output_error,
        "dense": dense_error(model, kernel, order, length, config),
        "shorter": np.array([whole_error(model, kernel, order, steps) for steps in shorter]),
    }


def column(config: VolterraConfig, stages: Stages, key: str) -> dict[str, list[float]]:
    """Return one quantity, such as ``width``, as a dict from the name of a kernel to a list with one number per
    length.
    """
    return {name: [float(built(stages, name, length)[key]) for length in config.lengths] for name in config.kernels}


def whole_error(model: VolterraSSM, kernel: Kernel, order: int, length: int) -> float:
    """Return the relative error ‖h - ĥ‖ / ‖h‖ of the model's Volterra kernel ĥ, over all combinations of steps 0 …
    length. Here h is the correct kernel.
    """
    times = torch.arange(length + 1)
    truth = kernel(*np.meshgrid(*[times.double().numpy()] * order, indexing="ij"))
    with torch.no_grad():
        found = model.kernel(*[times] * order).numpy()
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def dense_error(model: VolterraSSM, kernel: Kernel, order: int, length: int, config: VolterraConfig) -> float:
    """Return the relative root mean square error of the model's last output for white noise. The correct output is the
    explicit sum over all pairs (order 2) or triples (order 3) of steps.

    Return NaN if the sum has too many terms, as for triples of more than a few hundred steps.
    """
    if (length + 1) ** order > 60 * WHOLE:
        return float("nan")
    random = np.random.default_rng(config.seed)
    x = random.standard_normal((config.outputs, length + 1))
    past = x[:, ::-1]
    times = np.arange(length + 1.0)
    wanted = np.zeros(config.outputs)
    rows = max(1, BLOCK // (length + 1) ** (order - 1))
    equation = "a b, i a, i b -> i" if order == 2 else "a b c, i a, i b, i c -> i"
    for first in range(0, length + 1, rows):
        part = slice(first, first + rows)
        values = kernel(*np.meshgrid(times[part], *[times] * (order - 1), indexing="ij"))
        wanted += np.einsum(equation, values, past[:, part], *[past] * (order - 1), optimize=True)
    with torch.no_grad():
        found = model(torch.from_numpy(x)[..., None])[0][:, -1, 0].numpy()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def figures(config: VolterraConfig, stages: Stages) -> Figures:
    """Yield a figure of the widths and the errors of the models against the length of the sequence."""
    lengths = list(map(float, config.lengths))

    def panel(title: str, label: str, key: str, limit: dict[str, list[float]]) -> Panel:
        drawn = [*lines(lengths, column(config, stages, key), "both"), *lines(lengths, limit, "dotted")]
        return Panel(title, "sequence length T", label, drawn, "log", "log")

    formulas = "; ".join(f"{name}: {FORMULAS[name]}" for name in config.kernels)
    least = {"Kolmogorov-Arnold: 2T + 1": [2 * length + 1 for length in lengths]}
    yield Figure(
        "volterra",
        f"Models constructed for kernels of order two and three at tolerance {config.tol:g}. Left: states and terms; "
        "dotted: a lower bound for the Kolmogorov-Arnold construction. Middle: relative error of the kernel. Right: "
        f"relative error of the outputs for white noise, against sums over all pairs or triples of steps. {formulas}.",
        [
            panel("width", "states and terms", "width", least),
            panel("kernel", "relative error", "kernel", {"tolerance": [config.tol] * len(lengths)}),
            panel("outputs", "relative error", "dense", {}),
        ],
    )


def claims(config: VolterraConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the two parts of proposition 3.9 of SSM-UA and on the outputs of the
    models.
    """
    kernel, thinned, dense = (
        [value for row in column(config, stages, key).values() for value in row]
        for key in ("kernel", "thinned", "dense")
    )
    met = sum(max(pair) <= config.tol for pair in zip(kernel, thinned, strict=True))
    yield Claim(
        "sums of products of convolutions with exponential sums approximate a Volterra series to any tolerance",
        "an m exists for every ε",
        f"{met} of {len(kernel)} models at ε = {config.tol:g}; kernels to {max(kernel):.1e}, outputs to "
        f"{max(thinned):.1e}",
        rules.graded(met == len(kernel), met > 0),
        "Errors are relative to the norm of the kernel, and to the root mean square of outputs for white noise "
        "thinned out to the steps tested.",
    )
    widths, (*_, before, longest) = column(config, stages, "width"), config.lengths
    growth = {name: row[-1] / row[-2] for name, row in widths.items()}
    serves = max(float(error) for name in config.kernels for error in built(stages, name, longest)["shorter"])
    constant = sum(ratio <= config.growth for ratio in growth.values())
    yield Claim(
        "the width does not depend on the length",
        "not explicitly",
        f"widths at T = {listed(config.lengths, '')}: "
        + "; ".join(f"{FORMULAS[name]}: {listed(row, '.0f')}" for name, row in widths.items())
        + f"; the models for T = {longest} have an error of at most {serves:.1e} on the shorter horizons",
        rules.graded(constant == len(growth) and serves <= config.tol, constant > 0),
        f"From T = {before} to {longest} a width grows at most {max(growth.values()):.2f}-fold (the limit is "
        f"{config.growth:g}): a power law needs more states until its tail is below the tolerance.",
    )
    dense = [value for value in dense if np.isfinite(value)]
    yield Claim(
        "the outputs of the series are approximated (equation 19)",
        "|y - ŷ| ≤ ε",
        f"white noise against sums over all pairs or triples: at most {max(dense):.1e}, relative, in {len(dense)} "
        "models",
        rules.graded(max(dense) <= config.scatter * config.tol, min(dense) <= config.tol),
        f"At step T, for {config.outputs} inputs each, whose error scatters about its mean; twice the tolerance is "
        "allowed for that.",
    )


run = computing(built)
SMOKE = VolterraConfig(kernels=("beat", "power-law", "triple-power-law"), lengths=(40, 100), outputs=4)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=VolterraConfig(), minutes=(0.1, 1.5))

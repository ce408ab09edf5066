"""Computes the condition number of the matrix Ω, which maps the coefficients of an input in a basis to the last state
of a recurrence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.reconstruction import condition_number, haar, optimized, uniform_ring
from stablessm.report.figure import Figure, Panel


@dataclass(frozen=True)
class Config:
    """Settings of ``lr-fig6``: sizes, rings and draws. Where LRU-UA, figure 6 gives a value, this value is
    the default.
    """

    length: int = 512
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """State sizes N."""
    functions: tuple[int, ...] = (8, 16, 32, 64, 128)
    """Numbers P of Haar wavelets."""
    rings: tuple[float, ...] = (0.0, 0.5, 0.9, 0.99)
    """Inner radii r_min of the rings; the outer radius is 1."""
    draws: int = 10
    slack: float = 1.1
    """A median over draws that rises by at most this factor counts as not rising."""
    rounding: float = 1e15
    """Condition numbers above this value are determined by rounding errors."""

    def cases(self) -> list[tuple[int, int, int, int]]:
        """Return all combinations of a number P of wavelets and a state size N ≥ P, as tuples (index of P, P, index of
        N, N). Cases with N < P are left out, because the matrix ΩᵀΩ is then singular.
        """
        pairs = product(enumerate(self.functions), enumerate(self.sizes))
        return [(p, functions, n, size) for (p, functions), (n, size) in pairs if size >= functions]


@stage("ring-{ring:g}", over=lambda config: config.rings)
def conditions(config: Config, run: Run, ring: float) -> Mapping[str, np.ndarray]:
    """Return condition numbers κ of the matrix Ω for random eigenvalues on a ring, as an array with one axis for the
    number P of Haar wavelets, one for the state size N, and one for the draw of the eigenvalues.

    The matrix Ω maps the coefficients of the P wavelets to the state; κ is infinite for N < P.
    """
    kappa = np.full((len(config.functions), len(config.sizes), config.draws), np.inf)
    for draw in range(config.draws):
        lam = uniform_ring(max(config.sizes), ring, seed=draw)
        for p, functions, n, size in config.cases():
            basis = haar(config.length, functions)
            kappa[p, n, draw] = condition_number(lam[:size], config.length, basis=basis)
    return {"kappa": kappa}


@stage("optimized")
def placed(config: Config, run: Run) -> Mapping[str, np.ndarray]:
    """Return condition numbers κ of the matrix Ω for optimized eigenvalues, as an array with one axis for the number P
    of Haar wavelets and one for the state size N.

    The matrix Ω maps the coefficients of the P wavelets to the state. κ is infinite for N < P, and NaN if N is larger
    than half the length of the input.
    """
    kappa = np.full((len(config.functions), len(config.sizes)), np.inf)
    for p, functions, n, size in config.cases():
        kappa[p, n] = np.nan
        if 2 * size <= config.length:
            basis = haar(config.length, functions)
            kappa[p, n] = condition_number(optimized(size, config.length, basis=basis), config.length, basis=basis)
    return {"kappa": kappa}


def medians(config: Config, stages: Stages) -> np.ndarray:
    """Return the median condition numbers over the random draws of eigenvalues, with one axis for the ring, one for the
    number P of wavelets, and one for the state size N."""
    return np.stack([np.median(found["kappa"], axis=-1) for found in conditions.all(config, stages).values()])


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of condition numbers: one panel for each ring of random eigenvalues, and one panel for optimized
    eigenvalues.
    """
    kappas = {f"r_min = {ring:g}": row for ring, row in zip(config.rings, medians(config, stages), strict=True)}
    kappas["optimized for the basis"] = placed(stages)["kappa"]
    panels = []
    for title, kappa in kappas.items():
        rows = dict(zip(config.functions, 2 * np.log10(kappa), strict=True))
        drawn = lines(config.sizes, rows, "both", "P = {}")
        panels.append(Panel(title, "state size N", "log10 κ(ΩᵀΩ)", drawn, x_scale="log"))
    yield Figure(
        "conditions",
        f"Inputs of {config.length} steps in the first P Haar wavelets; medians over {config.draws} draws, N ≥ P. "
        "Above 30 the numbers are rounding.",
        panels,
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: how the condition number depends on the state size, on the number of wavelets
    and on the inner radius r_min of the ring, and whether optimized eigenvalues are better.
    """
    median = medians(config, stages)
    along: dict[str, np.ndarray] = {
        "N grows": median, "P falls": median[:, ::-1].swapaxes(1, 2), "r_min approaches 1": np.moveaxis(median, 0, -1)
    }  # fmt: skip
    for change, values in along.items():
        falls, total = share(config, (pair for row in values.reshape(-1, values.shape[-1]) for pair in pairwise(row)))
        yield Claim(
            f"the condition number of ΩᵀΩ falls as {change}",
            "decreases",
            f"in {falls} of {total} comparisons of neighbors",
            rules.graded(falls == total, 2 * falls > total),
            f"Medians over {config.draws} draws; a rise below {config.slack - 1:.0%} does not count, nor do numbers "
            "that are rounding.",
        )
    best, nearest = placed(stages)["kappa"], median.min(axis=0)
    both = np.isfinite(best) & np.isfinite(nearest)
    wins, total = int((best[both] < nearest[both]).sum()), int(both.sum())
    yield Claim(
        "a placement optimized for the basis is better conditioned than random rings at equal N and P",
        "left open (section 3.1)",
        f"in {wins} of {total} cases, by a factor of {float(np.median(nearest[both] / best[both])):.2g} in the median",
        rules.ours(rules.graded(wins == total, 2 * wins > total)),
        f"κ of Ω against the best ring; the largest κ of the placement is {best[both].max():.3g}.",
    )


def share(config: Config, pairs: Iterable[tuple[float, float]]) -> tuple[int, int]:
    """Compare the condition numbers a and b of each pair (a, b). Return the number of pairs in which b is not clearly
    larger than a, and the number of pairs that can be compared.
    """
    usable = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b) and min(a, b) < config.rounding]
    return sum(b <= config.slack * a for a, b in usable), len(usable)


run = computing(conditions, placed)
SMOKE = Config(length=64, sizes=(8, 16, 32, 64), functions=(4, 8, 16), rings=(0.0, 0.9, 0.99), draws=3)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 1.5))

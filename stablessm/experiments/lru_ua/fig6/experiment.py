"""The condition number of ΩᵀΩ for inputs that are sparse in a basis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.reconstruction import condition_number, haar, optimized, uniform_ring
from stablessm.report.figure import Figure, Panel, Series


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment. The defaults are the sizes in LRU-UA, figure 6, where the paper gives them."""

    length: int = 512
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """State sizes N."""
    functions: tuple[int, ...] = (8, 16, 32, 64, 128)
    """Numbers P of Haar wavelets."""
    rings: tuple[float, ...] = (0.0, 0.5, 0.9, 0.99)
    """Inner radii r_min of the rings; the outer radius is 1."""
    draws: int = 10
    slack: float = 1.1
    """A median over draws that rises by at most this factor does not count as rising."""
    rounding: float = 1e15
    """Condition numbers from here on are rounding."""

    def cases(self, functions: int) -> list[int]:
        """Return the sizes N ≥ P; for N < P the matrix ΩᵀΩ is singular."""
        return [size for size in self.sizes if size >= functions]


def _measure_conditions(config: Config, run: Run, ring: float) -> None:
    def compute() -> Mapping[str, np.ndarray]:
        kappa = np.full((len(config.functions), len(config.sizes), config.draws), np.inf)
        for (p, functions), draw in product(enumerate(config.functions), range(config.draws)):
            basis, lam = haar(config.length, functions), uniform_ring(max(config.sizes), ring, seed=draw)
            for size in config.cases(functions):
                kappa[p, config.sizes.index(size), draw] = condition_number(lam[:size], config.length, basis=basis)
        return {"kappa": kappa}

    run.stage(f"ring-{ring:g}", compute)


def conditions(stages: Stages, ring: float) -> np.ndarray:
    """Return κ of Ω, (functions, sizes, draws); inf for N < P."""
    return stages[f"ring-{ring:g}"]["kappa"]


def _measure_placed(config: Config, run: Run) -> None:
    def compute() -> Mapping[str, np.ndarray]:
        kappa = np.full((len(config.functions), len(config.sizes)), np.inf)
        for p, functions in enumerate(config.functions):
            basis = haar(config.length, functions)
            for size in config.cases(functions):
                i, fits = config.sizes.index(size), 2 * size <= config.length
                kappa[p, i] = np.nan
                if fits:
                    lam = optimized(size, config.length, basis=basis)
                    kappa[p, i] = condition_number(lam, config.length, basis=basis)
        return {"kappa": kappa}

    run.stage("optimized", compute)


def placed(stages: Stages) -> np.ndarray:
    """Return κ of Ω for the optimized placement, (functions, sizes); inf for N < P, NaN for N > L/2."""
    return stages["optimized"]["kappa"]


def run(config: Config, run: Run) -> None:
    """Compute every ring and the optimized placement."""
    for ring in config.rings:
        _measure_conditions(config, run, ring)
    _measure_placed(config, run)


def squares(kappa: np.ndarray) -> list[float]:
    """Return log10 κ² of the median over draws."""
    return (2 * np.log10(kappa)).tolist()


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return a panel for each ring."""
    panels = []
    for ring in config.rings:
        median = np.median(conditions(stages, ring), axis=-1)
        lines = [
            Series(f"P = {functions}", list(config.sizes), squares(row), "both")
            for functions, row in zip(config.functions, median, strict=True)
        ]
        panels.append(Panel(f"r_min = {ring:g}", "state size N", "log10 κ(ΩᵀΩ)", lines, x_scale="log"))
    best = [
        Series(f"P = {functions}", list(config.sizes), squares(row), "both")
        for functions, row in zip(config.functions, placed(stages), strict=True)
    ]
    panels.append(Panel("optimized for the basis", "state size N", "log10 κ(ΩᵀΩ)", best, x_scale="log"))
    caption = (
        f"Inputs of {config.length} steps in the first P Haar wavelets; medians over {config.draws} draws, N ≥ P. "
        "Above 30 the numbers are rounding."
    )
    return [Figure("conditions", caption, panels)]


def share(config: Config, pairs: list[tuple[float, float]]) -> tuple[int, int]:
    """Return the number of pairs in which the second value is smaller, and the number of comparable pairs."""
    usable = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b) and min(a, b) < config.rounding]
    return sum(b <= config.slack * a for a, b in usable), len(usable)


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check the dependence on N, P and r_min, and the placement."""
    median = np.stack([np.median(conditions(stages, ring), axis=-1) for ring in config.rings])
    rings, functions, sizes = median.shape
    spans = {
        "N grows": [p for r, f in product(range(rings), range(functions)) for p in pairwise(median[r, f].tolist())],
        "P falls": [p for r, n in product(range(rings), range(sizes)) for p in pairwise(median[r, ::-1, n].tolist())],
        "r_min approaches 1": [
            p for f, n in product(range(functions), range(sizes)) for p in pairwise(median[:, f, n].tolist())
        ],
    }
    found = []
    for change, pairs in spans.items():
        falls, total = share(config, pairs)
        found.append(
            Claim(
                f"the condition number of ΩᵀΩ falls as {change}",
                "decreases",
                f"in {falls} of {total} comparisons of neighbors",
                rules.graded(falls == total, 2 * falls > total),
                f"Medians over {config.draws} draws; a rise below {config.slack - 1:.0%} does not count, nor do "
                "numbers that are rounding.",
            )
        )
    best, nearest = placed(stages), median.min(axis=0)
    both = np.isfinite(best) & np.isfinite(nearest)
    wins, total = int((best[both] < nearest[both]).sum()), int(both.sum())
    ratio = float(np.median(nearest[both] / best[both]))
    return [
        *found,
        Claim(
            "a placement optimized for the basis is better conditioned than random rings at equal N and P",
            "left open (section 3.1)",
            f"in {wins} of {total} cases, by a factor of {ratio:.2g} in the median",
            rules.ours(rules.graded(wins == total, 2 * wins > total)),
            f"κ of Ω against the best ring; the largest κ of the placement is {best[both].max():.3g}.",
        ),
    ]


EXPERIMENT = Experiment(
    id="lr-fig6",
    title="Conditioning under sparsity",
    source="LRU-UA, figure 6",
    question="How well conditioned is the reconstruction of inputs that are sparse in a basis?",
    claim="The condition number falls as N grows, as P falls and as r_min approaches 1.",
    configs={
        "smoke": Config(length=64, sizes=(8, 16, 32, 64), functions=(4, 8, 16), rings=(0.0, 0.9, 0.99), draws=3),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 1.5},
    run=run,
    figures=figures,
    claims=claims,
)

"""Kolmogorov–Arnold by five layers: error and width by refinement level (proposition 3.6, remark 3.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold, kolmogorov_arnold
from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.memories import span
from stablessm.report.figure import Figure, Panel, Series

TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x₁x₂": lambda x: x[:, 0] * x[:, 1],
    "sin(πx₁)x₂²": lambda x: np.sin(np.pi * x[:, 0]) * x[:, 1] ** 2,
    "|x₁-x₂|": lambda x: np.abs(x[:, 0] - x[:, 1]),
    "cos(5x₁+3x₂)": lambda x: np.cos(5 * x[:, 0] + 3 * x[:, 1]),
}
KEPT = ("error", "rms_error", "condition", "base", "families", "width", "parameters")


@dataclass(frozen=True)
class SuperpositionConfig:
    """Sizes of the experiment. The paper only has a drawing."""

    levels: tuple[int, ...] = (1, 2, 3, 4)
    digits: tuple[int, ...] = (1, 2, 3)
    lengths: tuple[int, ...] = (2, 3, 4)
    enough: float = 0.05
    """Largest error of the last level, relative to max |f|."""
    rounding: float = 1e-9
    """Relative error of the layers up to which they are exact."""


def product(x: np.ndarray) -> np.ndarray:
    """Return x_1 · … · x_d."""
    return x.prod(1)


def _facts(found: KolmogorovArnold) -> Mapping[str, np.ndarray]:
    line = np.linspace(0, 1, 101)
    across = found(np.column_stack([line, *[np.full_like(line, 0.7)] * (found.length - 1)]))
    return {
        **{name: np.array(float(getattr(found, name))) for name in KEPT},
        "realization": np.array(found.realization),
        "widths": np.array(found.widths),
        "across": across,
    }


def _measure_refined(run: Run, name: str, level: int, digits: int) -> None:
    stage = f"target-{list(TARGETS).index(name)}-level-{level}-digits-{digits}"
    run.stage(stage, lambda: _facts(kolmogorov_arnold(TARGETS[name], 2, level=level, digits=digits)))


def refined(stages: Stages, name: str, level: int, digits: int) -> Mapping[str, np.ndarray]:
    """Return widths and errors of one function of two variables at one refinement."""
    stage = f"target-{list(TARGETS).index(name)}-level-{level}-digits-{digits}"
    return stages[stage]


def _measure_longer(run: Run, length: int) -> None:
    run.stage(f"length-{length}", lambda: _facts(kolmogorov_arnold(product, length)))


def longer(stages: Stages, length: int) -> Mapping[str, np.ndarray]:
    """Return widths and errors of the product of ``length`` inputs at the first level."""
    return stages[f"length-{length}"]


def run(config: SuperpositionConfig, run: Run) -> None:
    """Compute every function at every refinement, and every length."""
    for name in TARGETS:
        for level in config.levels:
            _measure_refined(run, name, level, 1)
        for digits in config.digits:
            _measure_refined(run, name, 1, digits)
    for length in config.lengths:
        _measure_longer(run, length)


def column(rows: list[Mapping[str, np.ndarray]], name: str) -> list[float]:
    """Return one number of each row."""
    return [float(row[name]) for row in rows]


def figures(config: SuperpositionConfig, stages: Stages) -> list[Figure]:
    """Return figures of the error against the width for both refinements, and of the width against the length."""
    by_level = {name: [refined(stages, name, level, 1) for level in config.levels] for name in TARGETS}
    by_digit = {name: [refined(stages, name, 1, digits) for digits in config.digits] for name in TARGETS}
    panels = []
    for title, table in (("a larger base", by_level), ("more digits, base 6", by_digit)):
        lines = []
        for name, rows in table.items():
            lines.append(Series(name, column(rows, "width"), column(rows, "error"), "both", name))
            lines.append(
                Series(f"{name}, mean square", column(rows, "width"), column(rows, "rms_error"), "dotted", name)
            )
        panels.append(Panel(title, "units in the widest layer", "error / max |f|", lines, "log", "log"))
    lengths = [float(length) for length in config.lengths]
    rows = [longer(stages, length) for length in config.lengths]
    growth = [
        Series("terms of the sum, 2d + 1", lengths, column(rows, "families"), "both"),
        Series("states in all layers", lengths, [float(row["widths"].sum()) for row in rows], "both"),
        Series("weights", lengths, column(rows, "parameters"), "both"),
    ]
    panels.append(Panel("growth with the length, level 1", "length d", "number", growth, "linear", "log"))
    line = np.linspace(0, 1, 101)
    first = next(iter(TARGETS))
    exact = TARGETS[first](np.column_stack([line, np.full_like(line, 0.7)]))
    slices = [Series(first, line.tolist(), exact.tolist(), "dashed")]
    for row in by_level[first]:
        slices.append(Series(f"{row['width']:.0f} units", line.tolist(), row["across"].tolist()))
    caption = (
        "Left: the largest error met (solid) and its mean square (dotted) of five-layer models of functions of two "
        "variables with more and more terms. Middle: with five terms and more digits. Right: the width against the "
        "length."
    )
    cut = "The output of the five layers along x₂ = 0.7: one term is wrong where x₁ crosses a gap."
    return [
        Figure("superposition", caption, panels),
        Figure("slice", cut, [Panel(f"{first} at x₂ = 0.7", "x₁", "y", slices)]),
    ]


def falls(values: list[float]) -> bool:
    """Return whether every number is below the one before."""
    return all(after < before for before, after in pairwise(values))


def claims(config: SuperpositionConfig, stages: Stages) -> list[Claim]:
    """Check proposition 3.6 by levels and by digits, the layers themselves, and remark 3.7."""
    by_level = {name: [refined(stages, name, level, 1) for level in config.levels] for name in TARGETS}
    by_digit = {name: [refined(stages, name, 1, digits) for digits in config.digits] for name in TARGETS}
    everything = [row for table in (by_level, by_digit) for rows in table.values() for row in rows]
    down = all(falls(column(rows, "error")) for rows in by_level.values())
    last = max(column(rows, "error")[-1] for rows in by_level.values())
    table = "; ".join(f"{name}: " + ", ".join(f"{e:.1%}" for e in column(r, "error")) for name, r in by_level.items())
    widths = ", ".join(f"{width:.0f}" for width in column(next(iter(by_level.values())), "width"))
    digit_widths = ", ".join(f"{width:.0f}" for width in column(next(iter(by_digit.values())), "width"))
    sup_down = all(falls(column(rows, "error")) for rows in by_digit.values())
    mean_down = all(falls(column(rows, "rms_error")) for rows in by_digit.values())
    digit_table = "; ".join(
        f"{name}: "
        + ", ".join(f"{a:.0%} ({b:.1%})" for a, b in zip(column(r, "error"), column(r, "rms_error"), strict=True))
        for name, r in by_digit.items()
    )
    realization, slopes = max(column(everything, "realization")), column(everything, "condition")
    return [
        Claim(
            "a five-layer SSM approximates a function of a sequence to any accuracy",
            "for every ε there is a width",
            f"largest sampled error over max |f|, by level: {table}; widest layer {widths}",
            rules.graded(down and last < config.enough, down),
            f"Two inputs. A level doubles the base and the number of terms; the error falls about as one over the "
            "terms, "
            f"and the last is {'below' if last < config.enough else 'not below'} {config.enough:.0%}. Sampled, so "
            "a lower bound.",
        ),
        Claim(
            "2d + 1 terms and one fixed inner function are enough (theorem 3.5)",
            "an identity in the limit",
            f"with 5 terms of base 6 and {span(config.digits)} digits, largest error (mean square): {digit_table}; "
            f"widest layer {digit_widths}",
            rules.graded(sup_down, mean_down),
            "At feasible sizes the largest error does not fall: it occurs in narrower and narrower strips, where x₁ "
            "crosses a gap of the inner function and one term takes all values; the mean square falls.",
        ),
        Claim(
            "inner function, sum over time and outer functions are each an SSM, with a total error of at most L‖ρ‖ε "
            "+ Lε + ε",
            "ε > 0 for each part, L the Lipschitz constant of the outer function",
            f"the layers give the superposition up to {realization:.0e} of max |f|; L is {span(slopes)}",
            rules.graded(realization < config.rounding),
            "With hardtanh, a sigmoidal function, piecewise linear parts are exact, and d modes on a circle give the "
            "kernel exactly: ε is rounding. It must be this small, because L grows with every refinement.",
        ),
        remark(config, stages),
    ]


def remark(config: SuperpositionConfig, stages: Stages) -> Claim:
    """Check that the neurons grow linearly with the length (remark 3.7)."""
    rows = [longer(stages, length) for length in config.lengths]
    states = [float(row["widths"].sum()) for row in rows]
    terms = column(rows, "families")
    linear = all(
        after / before < 2 * b / a
        for (before, after), (a, b) in zip(pairwise(states), pairwise(config.lengths), strict=True)
    )
    terms_linear = all(count == 2 * length + 1 for count, length in zip(terms, config.lengths, strict=True))
    verdict = rules.graded(linear, terms_linear)
    found = ", ".join(
        f"d = {d}: {t:.0f} terms, {s:.0f} states" for d, t, s in zip(config.lengths, terms, states, strict=True)
    )
    errors = ", ".join(f"{error:.0%}" for error in column(rows, "error"))
    return Claim(
        "the number of hidden neurons grows linearly with the sequence length",
        "linear",
        f"{found}; errors {errors}",
        verdict,
        "Only the 2d + 1 terms grow linearly. An outer function has a step for each of γ^d cubes with γ ≥ 2d + 2, "
        "so the "
        "neurons grow faster than exponentially.",
    )


EXPERIMENT = Experiment(
    id="su-fig3",
    title="Kolmogorov–Arnold by five layers",
    source="SSM-UA, figure 3, proposition 3.6 and remark 3.7",
    question="Does the five-layer construction approximate a function of a sequence, and how wide must it be?",
    claim="Five layers approximate any continuous functional; the neurons grow linearly with the length.",
    configs={
        "smoke": SuperpositionConfig(levels=(1, 2), digits=(1, 2), lengths=(2, 3)),
        "paper": SuperpositionConfig(),
    },
    minutes={"smoke": 0.1, "paper": 1},
    run=run,
    figures=figures,
    claims=claims,
)

"""Computes Kolmogorov–Arnold superpositions by models of five layers, and measures their error and width (SSM-UA,
proposition 3.6 and remark 3.7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np

from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold, kolmogorov_arnold
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.words import each, listed, span
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
    """Settings of ``su-fig3``: lengths of the inputs, thresholds, and the arguments ``level`` and ``digits``, which
    determine the accuracy of the constructions. The paper has only a drawing.
    """

    levels: tuple[int, ...] = (1, 2, 3, 4)
    digits: tuple[int, ...] = (1, 2, 3)
    lengths: tuple[int, ...] = (2, 3, 4)
    enough: float = 0.05
    """Largest error at the last level, relative to max |f|, that counts as an approximation."""
    rounding: float = 1e-9
    """The layers count as exact up to this relative error."""


def _facts(found: KolmogorovArnold) -> Mapping[str, Any]:
    line = np.linspace(0, 1, 101)
    across = found(np.column_stack([line, *[np.full_like(line, 0.7)] * (found.length - 1)]))
    kept = {name: float(getattr(found, name)) for name in KEPT}
    return {**kept, "realization": found.realization, "widths": found.widths, "across": across}


@stage(lambda name, level, digits: f"target-{list(TARGETS).index(name)}-level-{level}-digits-{digits}")
def refined(config: SuperpositionConfig, run: Run, name: str, level: int, digits: int) -> Mapping[str, Any]:
    """Build the five-layer model of a function of two variables with the given arguments ``level`` and ``digits`` of
    :func:`~stablessm.constructions.kolmogorov_arnold`, and return its widths and errors.
    """
    return _facts(kolmogorov_arnold(TARGETS[name], 2, level=level, digits=digits))


@stage("length-{length}", over=lambda config: config.lengths)
def longer(config: SuperpositionConfig, run: Run, length: int) -> Mapping[str, Any]:
    """Build the five-layer model of the product of ``length`` inputs, with the default ``level`` and ``digits``, and
    return its widths and errors.
    """
    return _facts(kolmogorov_arnold(lambda x: x.prod(1), length))


def run(config: SuperpositionConfig, run: Run) -> None:
    """Build five-layer models of every function in ``TARGETS``, with several levels (at one digit) and with several
    digits (at level 1); then models of the product of several numbers of inputs.
    """
    for name in TARGETS:
        for level, digits in (*product(config.levels, (1,)), *product((1,), config.digits)):
            refined.compute(config, run, name, level, digits)
    computing(longer)(config, run)


Table: TypeAlias = Mapping[str, Sequence[Mapping[str, np.ndarray]]]
"""Widths and errors of several five-layer models for each approximated function. The models for one function differ in
one argument: ``level``, ``digits`` or the length of the input."""


def column(table: Table, key: str) -> dict[str, list[float]]:
    """Return one quantity, such as ``width``, as a dict from the name of a function to a list with one number per
    model.
    """
    return {name: [float(row[key].sum()) for row in rows] for name, rows in table.items()}


def tables(config: SuperpositionConfig, stages: Stages) -> tuple[Table, Table, Table]:
    """Return three tables with the widths and errors of five-layer models. In the first table the models differ in
    ``level``, in the second in ``digits``, and in the third in the length of the input.
    """
    return (
        {name: [refined(stages, name, level, 1) for level in config.levels] for name in TARGETS},
        {name: [refined(stages, name, 1, digits) for digits in config.digits] for name in TARGETS},
        {"": list(longer.all(config, stages).values())},
    )


def figures(config: SuperpositionConfig, stages: Stages) -> Figures:
    """Yield two figures. The first shows the errors of the models against their width, and the width against the length
    of the input; the second shows the outputs of some models along a line in the domain.
    """
    by_level, by_digit, by_length = tables(config, stages)
    panels = []
    for title, table in (("a larger base", by_level), ("more digits, base 6", by_digit)):
        lines = []
        for name, widths in column(table, "width").items():
            lines.append(Series(name, widths, column(table, "error")[name], "both", name))
            lines.append(Series(f"{name}, mean square", widths, column(table, "rms_error")[name], "dotted", name))
        panels.append(Panel(title, "units in the widest layer", "error / max |f|", lines, "log", "log"))
    named = {"terms of the sum, 2d + 1": "families", "states in all layers": "widths", "weights": "parameters"}
    lengths = [float(length) for length in config.lengths]
    growth = [Series(name, lengths, column(by_length, key)[""], "both") for name, key in named.items()]
    panels.append(Panel("growth with the length, level 1", "length d", "number", growth, "linear", "log"))
    yield Figure(
        "superposition",
        "Left: the largest error met (solid) and its mean square (dotted) of five-layer models of functions of two "
        "variables with more and more terms. Middle: with five terms and more digits. Right: the width against the "
        "length.",
        panels,
    )
    line, first = np.linspace(0, 1, 101), next(iter(TARGETS))
    slices = [Series(first, line, TARGETS[first](np.column_stack([line, np.full_like(line, 0.7)])), "dashed")]
    slices += [Series(f"{row['width']:.0f} units", line, row["across"]) for row in by_level[first]]
    cut = "The output of the five layers along x₂ = 0.7: one term is wrong where x₁ crosses a gap."
    yield Figure("slice", cut, [Panel(f"{first} at x₂ = 0.7", "x₁", "y", slices)])


def falls(table: Mapping[str, list[float]]) -> bool:
    """Return True if in every row of the table each number is smaller than the number before it."""
    return all(after < before for row in table.values() for before, after in pairwise(row))


def claims(config: SuperpositionConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on proposition 3.6 and remark 3.7 of SSM-UA: whether the errors fall with the
    level and with the digits, whether the layers are exact, and how the width grows with the length.
    """
    by_level, by_digit, by_length = tables(config, stages)
    errors, first = column(by_level, "error"), next(iter(TARGETS))
    down, last = falls(errors), max(row[-1] for row in errors.values())
    yield Claim(
        "a five-layer SSM approximates a function of a sequence to any accuracy",
        "for every ε there is a width",
        "largest sampled error over max |f|, by level: "
        + "; ".join(f"{name}: {listed(row, '.1%')}" for name, row in errors.items())
        + f"; widest layer {listed(column(by_level, 'width')[first], '.0f')}",
        rules.graded(down and last < config.enough, down),
        "Two inputs. A level doubles the base and the number of terms; the error falls about as one over the terms, "
        f"and the last is {'below' if last < config.enough else 'not below'} {config.enough:.0%}. Sampled, so a lower "
        "bound.",
    )
    errors, means = column(by_digit, "error"), column(by_digit, "rms_error")
    pairs = {name: zip(row, means[name], strict=True) for name, row in errors.items()}
    yield Claim(
        "2d + 1 terms and one fixed inner function are enough (theorem 3.5)",
        "an identity in the limit",
        f"with 5 terms of base 6 and {span(config.digits)} digits, largest error (mean square): "
        + "; ".join(f"{name}: {each('{:.0%} ({:.1%})', rows)}" for name, rows in pairs.items())
        + f"; widest layer {listed(column(by_digit, 'width')[first], '.0f')}",
        rules.graded(falls(errors), falls(means)),
        "At feasible sizes the largest error does not fall: it occurs in narrower and narrower strips, where x₁ "
        "crosses a gap of the inner function and one term takes all values; the mean square falls.",
    )
    realized, slopes = (
        [value for table in (by_level, by_digit) for row in column(table, key).values() for value in row]
        for key in ("realization", "condition")
    )
    yield Claim(
        "inner function, sum over time and outer functions are each an SSM, with a total error of at most L‖ρ‖ε "
        "+ Lε + ε",
        "ε > 0 for each part, L the Lipschitz constant of the outer function",
        f"the layers give the superposition up to {max(realized):.0e} of max |f|; L is {span(slopes)}",
        rules.graded(max(realized) < config.rounding),
        "With hardtanh, a sigmoidal function, piecewise linear parts are exact, and d modes on a circle give the "
        "kernel exactly: ε is rounding. It must be this small, because L grows with every refinement.",
    )
    states, terms, errors_by_length = (column(by_length, key)[""] for key in ("widths", "families", "error"))
    rows = list(zip(config.lengths, terms, states, strict=True))
    linear = all(after / before < 2 * b / a for (a, _, before), (b, _, after) in pairwise(rows))
    yield Claim(
        "the number of hidden neurons grows linearly with the sequence length",
        "linear",
        f"{each('d = {}: {:.0f} terms, {:.0f} states', rows)}; errors {listed(errors_by_length, '.0%')}",
        rules.graded(linear, all(count == 2 * length + 1 for length, count, _ in rows)),
        "Only the 2d + 1 terms grow linearly. An outer function has a step for each of γ^d cubes with γ ≥ 2d + 2, so "
        "the neurons grow faster than exponentially.",
    )


SMOKE = SuperpositionConfig(levels=(1, 2), digits=(1, 2), lengths=(2, 3))
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=SuperpositionConfig(), minutes=(0.1, 1))

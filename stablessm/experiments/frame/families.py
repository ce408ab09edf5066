"""Builds figure panels and claims from the perturbation errors of models of growing width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stablessm.experiments.frame import rules
from stablessm.instruments import PerturbationCurve, PerturbationFamily
from stablessm.instruments.family import MARGIN, StabilityVerdict
from stablessm.report.claim import Claim
from stablessm.report.figure import Panel, Series, Style

STABILITY = {True: "stable", False: "unstable", None: "undecided"}
"""Text of the field ``stable`` of a :class:`StabilityVerdict`."""


def panel(
    title: str,
    found: Iterable[PerturbationFamily],
    note: str,
    label: str = "E_m(β), L¹ of the kernel",
    y_range: tuple[float, float] | None = None,
) -> Panel:
    """Return a panel of the perturbation errors E_m(β) against β. ``found`` has two families with the same widths m:
    the first from random draws, shown as points; the second from gradient ascent, shown as lines. The names of the
    points end with ``note``; ``label`` is the label of the y axis.
    """

    drawn, climbed = found

    def lines(found: PerturbationFamily, style: Style, note: str) -> list[Series]:
        rows = ((f"m = {m}", curve) for m, curve in found.curves.items())
        return [Series(name + note, curve.radius[1:], curve.lower[1:], style, name) for name, curve in rows]

    return Panel(
        title, "β", label, [*lines(drawn, "points", note), *lines(climbed, "solid", "")], "log", "log", y_range
    )


def of_errors(widths: Sequence[int], radii: Sequence[float], errors: np.ndarray) -> PerturbationFamily:
    """Build a :class:`PerturbationFamily` from errors (widths, radii) that a stage stored. The fields of the result
    that describe the search are placeholders.

    >>> of_errors((2, 4), (0.0, 0.1), np.array([[1.0, 2.0], [0.5, 1.0]])).widths
    (2, 4)
    """
    facts: dict[str, Any] = {
        "upper": None, "theorem": None, "norm": "mse", "weight_norm": "tensor_max", "search": "ascent",
        "parameters": (), "samples": 0, "steps": 0, "horizon": 0, "dt": 1.0, "seed": 0, "evaluations": 0,
    }  # fmt: skip
    radius = np.array(radii)
    return PerturbationFamily(
        {m: PerturbationCurve(radius, row, **facts) for m, row in zip(widths, errors, strict=True)}
    )


def improving(family: PerturbationFamily) -> PerturbationFamily:
    """Return the family up to the width at which the models stop improving. The first model that does not clearly fit
    better than all narrower models is removed, and all wider models are removed too.

    The reason: if a wider model does not fit better, its error is due to its training and says nothing about the width.
    """
    best, kept = np.inf, {}
    for (width, curve), error in zip(family.curves.items(), family.errors[:, 0], strict=True):
        if not error < (1 - MARGIN) * best:
            break
        best, kept[width] = error, curve
    return PerturbationFamily(kept) if kept else family


def said(verdict: StabilityVerdict, digits: str = ".2g") -> str:
    """Return a stability verdict as text, such as ``stable up to β = 0.1``."""
    return STABILITY[verdict.stable] + (f" up to β = {verdict.radius:{digits}}" if verdict.stable else "")


def evidence(verdicts: Mapping[str, StabilityVerdict]) -> str:
    """Return the reasons for several stability verdicts as one text."""
    return " ".join(f"{name}: {'; '.join(verdict.evidence)}." for name, verdict in verdicts.items())


def stability(statement: str, paper: str, verdicts: Mapping[str, StabilityVerdict], *, stable: bool = True) -> Claim:
    """Return a claim about several families of models: all of them approximate their targets stably. With
    ``stable=False`` the claim is that none of them does. ``verdicts`` maps the name of a family to the verdict on its
    stability; ``statement`` and ``paper`` are fields of the claim.
    """
    agree = [None if verdict.stable is None else verdict.stable is stable for verdict in verdicts.values()]
    ours = "; ".join(f"{name}: {said(verdict)}" for name, verdict in verdicts.items())
    return Claim(statement, paper, ours, rules.some(agree), evidence(verdicts))

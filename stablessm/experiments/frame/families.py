"""Perturbation errors of models of growing width: a panel, the widths that improve, and stability in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from stablessm.experiments.frame import rules
from stablessm.instruments import PerturbationFamily
from stablessm.instruments.family import MARGIN, StabilityVerdict
from stablessm.report.claim import Claim
from stablessm.report.figure import Panel, Series, Style


def panel(
    title: str,
    found: Iterable[PerturbationFamily],
    note: str,
    label: str = "E_m(β), L¹ of the kernel",
    y_range: tuple[float, float] | None = None,
) -> Panel:
    """Return E_m(β) against β of two families: random draws as points, named with ``note``, and ascent as lines."""

    drawn, climbed = found

    def lines(found: PerturbationFamily, style: Style, note: str) -> list[Series]:
        rows = ((f"m = {m}", curve) for m, curve in found.curves.items())
        return [Series(name + note, curve.radius[1:], curve.lower[1:], style, name) for name, curve in rows]

    return Panel(
        title, "β", label, [*lines(drawn, "points", note), *lines(climbed, "solid", "")], "log", "log", y_range
    )


def improving(family: PerturbationFamily) -> PerturbationFamily:
    """Return the first widths, as long as each model is better than all narrower ones.

    A wider model that is no better is limited by its training, and its error says nothing about the width.
    """
    best, kept = np.inf, {}
    for (width, curve), error in zip(family.curves.items(), family.errors[:, 0], strict=True):
        if not error < (1 - MARGIN) * best:
            break
        best, kept[width] = error, curve
    return PerturbationFamily(kept) if kept else family


def said(verdict: StabilityVerdict, digits: str = ".2g") -> str:
    """Return a verdict in a few words."""
    if verdict.stable is None:
        return "undecided"
    return f"stable up to β = {verdict.radius:{digits}}" if verdict.stable else "unstable"


def evidence(verdicts: Mapping[str, StabilityVerdict]) -> str:
    """Return the reasons of verdicts, each after its name."""
    return " ".join(f"{name}: {'; '.join(verdict.evidence)}." for name, verdict in verdicts.items())


def stability(statement: str, paper: str, verdicts: Mapping[str, StabilityVerdict], *, stable: bool = True) -> Claim:
    """Check that families, given by name, are stable, or that they are not."""
    agree = [None if verdict.stable is None else verdict.stable is stable for verdict in verdicts.values()]
    ours = "; ".join(f"{name}: {said(verdict)}" for name, verdict in verdicts.items())
    return Claim(statement, paper, ours, rules.some(agree), evidence(verdicts))

"""Perturbation errors of models of growing width: as lines, and as far as width helps."""

from __future__ import annotations

import numpy as np

from stablessm.instruments import PerturbationFamily
from stablessm.instruments.family import MARGIN
from stablessm.report.figure import Series, Style


def lines(found: PerturbationFamily, style: Style = "solid", note: str = "") -> list[Series]:
    """E_m(β) over β of every width; one color for each width."""
    return [
        Series(f"m = {m}{note}", curve.radius[1:].tolist(), curve.lower[1:].tolist(), style, f"m = {m}")
        for m, curve in found.curves.items()
    ]


def improving(family: PerturbationFamily) -> PerturbationFamily:
    """The first widths, as long as each model is better than all narrower ones.

    Where a wider model is no better it is the optimiser that limits it, and its error says nothing about the width.
    """
    best, kept = np.inf, {}
    for (width, curve), error in zip(family.curves.items(), family.errors[:, 0], strict=True):
        if not error < (1 - MARGIN) * best:
            break
        best, kept[width] = error, curve
    return PerturbationFamily(kept) if kept else family

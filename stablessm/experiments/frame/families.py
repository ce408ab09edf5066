"""Perturbation errors of models of growing width: their lines in a figure, and the widths that improve."""

from __future__ import annotations

import numpy as np

from stablessm.instruments import PerturbationFamily
from stablessm.instruments.family import MARGIN
from stablessm.report.figure import Series, Style


def lines(found: PerturbationFamily, style: Style = "solid", note: str = "") -> list[Series]:
    """Return E_m(β) against β as one line per width."""
    return [
        Series(f"m = {m}{note}", curve.radius[1:].tolist(), curve.lower[1:].tolist(), style, f"m = {m}")
        for m, curve in found.curves.items()
    ]


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

"""Invented stages of st-rates, and the verdicts that they must give."""

from __future__ import annotations

from typing import Any

import numpy as np
from claim_case import Case

MAPS = ("direct", "relu", "exp", "softplus", "best-0.5", "best-1", "tanh")
EVERY = "training-*"
BEST = "training-*-best-0.5"


def alive(rates: int, final: float = 1.0, **others: Any) -> dict[str, Any]:
    """Trainings that survive the first rates with every seed."""
    good = np.broadcast_to(np.arange(10)[:, None] < rates, (10, 3))
    return {
        "diverged": np.where(good, -1, 5), "final": np.where(good, final, 9.0), "entropy": np.array(6.0),
        "spikes": np.zeros((10, 3)), **others,
    }  # fmt: skip


def tested(best: float) -> dict[str, Any]:
    """Test losses of 4, and of best."""
    full = alive(10, test=np.full((10, 3), 4.0))
    return {EVERY: full, BEST: {**full, "test": np.full((10, 3), best)}}


def ratios(edges: tuple[int, ...]) -> dict[str, Any]:
    """Ratios 1, 2, … of the maps, which break after these numbers of rates."""
    rows = enumerate(zip(MAPS, edges, strict=True))
    return {f"training-*-{map}": alive(n, largest=np.full((2, 10, 3), 1.0 + i)) for i, (map, n) in rows}


RATES = {
    "st-rates": [
        Case("rr...hhhh..", {EVERY: alive(5), "training-*-[dr]*": alive(4), BEST: alive(6)}),
        Case("pr...pp....", {EVERY: alive(5), "training-*-direct": alive(4)}),
        Case("pp.....pp..", {EVERY: alive(4), "training-*-exp": alive(5), BEST: alive(5)}),
        Case("nn...dddd..", {EVERY: alive(4), BEST: alive(3)}),
        Case("ii..iiiii..", {EVERY: alive(10)}),
        Case("iii.iiiii..", {EVERY: alive(0)}),
        Case("..r........", {EVERY: alive(8), BEST: alive(8, 0.98)}),
        Case("..p........", {EVERY: alive(8), BEST: alive(8, 1.04)}),
        Case("..n........", {EVERY: alive(8), BEST: alive(8, 1.06)}),
        Case("..n........", {EVERY: alive(8), BEST: alive(7, 0.5)}),
        Case("...r.......", {EVERY: alive(8), BEST: alive(9)}),
        Case("...p.......", {EVERY: alive(8)}),
        Case("...r.......", {EVERY: alive(8, spikes=np.ones((10, 3))), BEST: alive(8)}),
        Case("...n.......", {EVERY: alive(8), BEST: alive(8, spikes=np.ones((10, 3)))}),
        Case("....r......", ratios((9, 8, 7, 6, 5, 4, 3))),
        Case("....n......", ratios((3, 4, 5, 6, 7, 8, 9))),
        Case(".........h.", {EVERY: alive(8), BEST: alive(8, moved=np.full((2, 10, 3), 0.1))}),
        Case(".........d.", {EVERY: alive(8), BEST: alive(8, moved=np.full((2, 10, 3), 0.09))}),
        Case("..........h", tested(4.049)),
        Case("..........d", tested(4.051)),
    ],
}  # fmt: skip

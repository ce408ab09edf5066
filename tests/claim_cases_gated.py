"""Invented stages of ext-gated, and the verdicts that they must give."""

from __future__ import annotations

from typing import Any

import numpy as np
from claim_case import Case

from stablessm.experiments.beyond.gated.experiment import GatedConfig

RATES = GatedConfig().rates
EVERY, EXP, DIRECT = "*-*-*", "*-exp-*", "*-direct-*"


def alive(*, worst: float = 1.0, **counts: int) -> dict[str, Any]:
    """Trainings whose first rates, as many as given for each map, survive with every seed."""
    found: dict[str, Any] = {}
    for map, count in counts.items():
        for i, rate in enumerate(RATES):
            good = i < count
            final = np.full(3, worst if good else 9.0)
            found[f"*-{map}-{rate}"] = {"diverged": np.full(3, -1), "final": final, "entropy": np.array(2.0)}
    return found


def tested(exp: float) -> dict[str, Any]:
    """Test losses of 1, and of exp."""
    return {EVERY: {"test": np.full(3, 1.0)}, EXP: {"test": np.full(3, exp)}}


FAILED = alive(direct=1, exp=3, softplus=3, best=3)
GATED = {
    "ext-gated": [
        Case("hhhh....", FAILED),
        Case("hhhd....", alive(direct=1, exp=3, softplus=4, best=3)),
        Case("pppd....", alive(direct=2, exp=2, softplus=3, best=2)),
        Case("dddh....", alive(direct=3, exp=2, softplus=3, best=4)),
        Case("dddd....", alive(direct=3, exp=3, softplus=2, best=2)),
        Case("iiii...i", alive(direct=5, exp=5, softplus=5, best=5)),
        Case("iiii....", alive(direct=0, exp=0, softplus=0, best=0)),
        Case("hhhh....", alive(worst=2.09, direct=1, exp=3, softplus=3, best=3)),
        Case("iiii....", alive(worst=2.11, direct=1, exp=3, softplus=3, best=3)),
        Case("....hhh.", tested(1.049)),
        Case("....ddd.", tested(1.051)),
        Case("....hhh.", tested(1.051), {"close": 0.1}),
        Case("....ddd.", {**tested(1.0), EXP: {"test": np.full(3, np.nan)}}),
        Case(".......h", {**FAILED, DIRECT: {"largest": np.array([-1.0, 1.0, np.nan])}}),
        Case(".......d", {**FAILED, DIRECT: {"largest": np.array([-1.0, 1.0, -1.0])}}),
    ],
}  # fmt: skip

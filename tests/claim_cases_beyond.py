"""Invented stages of ext-nonlinear and ext-approximation, and the verdicts that they must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from claim_case import Case

from stablessm.experiments.beyond.approximation import experiment as approximation
from stablessm.experiments.beyond.nonlinear import experiment as nonlinear

# --- ext-nonlinear ---------------------------------------------------------------------------------------------------

REDUCED = nonlinear.NonlinearConfig()
M, BETA = np.array(REDUCED.widths)[:, None], np.array(REDUCED.radii)
STABLE = 0.2 / M + BETA
TOLERANT = 0.2 / M + BETA / 10
UNSTABLE = 0.2 / M + 0.1 * BETA * M
USELESS = 0.04 + BETA + 0 * M
COARSE = 1.0 / M + BETA


def cells(table: np.ndarray, other: np.ndarray | None = None) -> dict[str, Any]:
    """Errors E_m(β) if recurrent weights are perturbed, and if all are."""
    return {"recurrent": table, "all": table if other is None else other}


NONLINEAR = [
    Case("hhhdhdhdhdd", {"errors-*": cells(STABLE)}),
    Case("hddhdhdhd..", {"errors-*": cells(UNSTABLE)}),
    Case("hiiiiiiiidd", {"errors-*": cells(USELESS)}),
    Case("diiiiiiii..", {"errors-*": cells(COARSE)}),
    Case("p..........", {"errors-*": cells(STABLE), "errors-[ep]*": cells(COARSE)}),
    Case("..p.p.p.p..", {"errors-*": cells(UNSTABLE), "errors-*-neg_exp": cells(STABLE)}),
    Case("hhhhhhhhhhd", {"errors-*": cells(TOLERANT, STABLE), "errors-[pls]*-direct": cells(UNSTABLE, STABLE)}),
    Case(".........dh", {"errors-*": cells(STABLE, TOLERANT), "errors-*-direct": cells(STABLE)}),
    Case(".........pp", {"errors-*": cells(TOLERANT), "errors-*-[ds]*": cells(STABLE)}),
]

# --- ext-approximation -----------------------------------------------------------------------------------------------

LINEAR, GATED, ATTENTION = "trained-[LS]*-", "trained-[GHs]*-", "trained-a*-"
T = np.arange(256.0)
EXP, POWER = np.exp(-T / 10), (1 + T) ** -1.5
UNCLEAR = np.exp(np.random.default_rng(0).normal(size=256))


def learned(error: float, grows: float = 1.0, spread: float = 1.0) -> dict[str, Any]:
    """Errors of three seeds."""
    errors = error * np.array([1 / spread, 1, spread])
    return {"error": errors, "longer": grows * errors}


def forgets(curve: np.ndarray) -> dict[str, Any]:
    """The same memory with three seeds."""
    return {"memory": np.tile(curve, (3, 1)), "floor": np.zeros(3)}


def ranked(distance: Callable[[int], float]) -> dict[str, Any]:
    """Errors that grow from mixer to mixer, and memories at a distance from the target's."""
    found: dict[str, Mapping[str, Any]] = {}
    for kind in ("exponential", "polynomial", "saturated"):
        exact = approximation.TARGETS[kind].memory(T).numpy()  # type: ignore[attr-defined]
        for i, mixer in enumerate(approximation.MIXERS):
            found[f"trained-{mixer}-{kind}"] = {**learned(0.1 * (i + 1)), **forgets(exact + distance(i))}
    return found


def first(linear: float, gated: float, attention: float, spread: float = 1.0) -> dict[str, Any]:
    """One error for each family, on every target."""
    return {
        f"{LINEAR}*": learned(linear, 1, spread), f"{GATED}*": learned(gated, 1, spread),
        f"{ATTENTION}*": learned(attention, 3, spread),
    }  # fmt: skip


APPROXIMATION = [
    Case("hhdph....", first(0.01, 0.1, 1)),
    Case("ddhp.....", first(1, 0.1, 0.01)),
    Case("ddph.....", first(1, 0.01, 0.1)),
    Case("pphd.....", first(0.1, 1, 0.01)),
    Case("pppp.....", {**first(0.1, 0.01, 1), **first(0.1, 0.01, 1)} | {
        f"{GATED}delay": learned(0.01), f"{ATTENTION}delay": learned(0.1), f"{LINEAR}delay": learned(1),
        f"{LINEAR}peak": learned(0.01), f"{GATED}peak": learned(0.1),
    }),
    Case("iiii.....", first(0.1, 0.11, 0.12, 3)),
    Case("....d....", {"trained-*": learned(0.1)}),
    Case("....d....", {"trained-*": learned(0.1, 3)}),
    Case("....p....", {"trained-*": learned(0.1), "trained-[aG]*": learned(0.1, 3)}),
    Case(".....dhh.", {"trained-*": forgets(EXP)}),
    Case(".....hdd.", {"trained-*": forgets(POWER)}),
    Case(".....iii.", {"trained-*": forgets(UNCLEAR)}),
    Case(".....ppp.", {
        "trained-*": forgets(POWER), "trained-*-[epd]*": forgets(EXP), "trained-a*-[dp]*": forgets(POWER)
    }),
    Case("........h", ranked(lambda i: 0.01 * i)),
    Case("........d", ranked(lambda i: 0.01 * (6 - i))),
    Case("........p", ranked(lambda i: 0.01 * (i, 2, 1, 5, 0, 4)[i])),
]  # fmt: skip
BEYOND = {"ext-nonlinear": NONLINEAR, "ext-approximation": APPROXIMATION}

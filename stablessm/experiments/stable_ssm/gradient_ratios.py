"""Compares gradient-to-weight ratios of the maps with the bound that theory gives for them; shared by figures 3 to 5 of
StableSSM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stablessm.experiments.frame import Claim, rules
from stablessm.experiments.frame.words import listed

RATIO = "|gradient| / |weight|"


def ascending(numbers: Mapping[str, float]) -> str:
    """Format one number per map as text, in ascending order."""
    return listed(dict(sorted(numbers.items(), key=lambda item: item[1])), ".2g")


def ranks(rows: np.ndarray) -> np.ndarray:
    """Return the rank of each row, counted from 0. Rows are compared by their first number, then by the second, and so
    on. Equal rows share their mean rank.

    >>> ranks(np.array([[0.3], [0.1], [0.3]])).tolist()
    [1.5, 0.0, 1.5]
    """
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    sizes = np.bincount(places.ravel(), minlength=len(unique))
    return np.asarray((np.cumsum(sizes) - (sizes + 1) / 2)[places.ravel()])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the rank correlation of two arrays with equally many rows. Return 0 if all rows of an array are equal."""
    first, second = (ranks(values.reshape(len(values), -1)) for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1]) if first.std() > 0 and second.std() > 0 else 0.0


def predicted(found: Mapping[str, Mapping[str, np.ndarray]], limits: Sequence[float]) -> Claim:
    """Return a claim with its verdict: the theoretical bound ranks the maps in the same order as the measured
    gradient-to-weight ratio does. ``found`` maps each map to two arrays, the measured ratios (``ratio``) and their
    bounds (``bound``). ``limits`` are two rank correlations: the claim is reproduced above the first, and partly
    reproduced above the second.
    """
    ratio, bound = ({map: one[key].max() for map, one in found.items()} for key in ("ratio", "bound"))
    order = correlation(np.array([*ratio.values()]), np.array([*bound.values()]))
    return Claim(
        "the bound G(w)/|w| puts the maps in the order of the measured ratios",
        "theorem 3.4: |∂loss/∂w| ≤ C G(w)",
        f"rank correlation {order:.2f} over {len(found)} maps at the start",
        rules.graded(*(order > limit for limit in limits)),
        f"Largest ratios {ascending(ratio)}; largest bounds {ascending(bound)}.",
    )

"""Compares gradient-to-weight ratios of the maps with their theoretical bound; shared by figures 3 to 5 of
StableSSM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stablessm.experiments.frame import Claim, rules
from stablessm.experiments.frame.words import listed

RATIO = "|gradient| / |weight|"


def ascending(numbers: Mapping[str, float]) -> str:
    """Format the numbers of all maps as text, smallest number first."""
    return listed(dict(sorted(numbers.items(), key=lambda item: item[1])), ".2g")


def ranks(rows: np.ndarray) -> np.ndarray:
    """Return the ranks of rows, from 0; rows are compared by their first number, then by the next, and ties share
    their mean rank.

    >>> ranks(np.array([[0.3], [0.1], [0.3]])).tolist()
    [1.5, 0.0, 1.5]
    """
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    sizes = np.bincount(places.ravel(), minlength=len(unique))
    return np.asarray((np.cumsum(sizes) - (sizes + 1) / 2)[places.ravel()])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the rank correlation of two lists of numbers or rows; 0 if all entries of a list are equal."""
    first, second = (ranks(values.reshape(len(values), -1)) for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1]) if first.std() > 0 and second.std() > 0 else 0.0


def predicted(found: Mapping[str, Mapping[str, np.ndarray]], limits: Sequence[float]) -> Claim:
    """Return a claim with its verdict: the theoretical bounds put the maps in the same order as the measured
    gradient-to-weight ratios. ``found`` holds the arrays ``ratio`` and ``bound`` of each map.
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

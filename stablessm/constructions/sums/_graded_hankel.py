"""Initial rates for kernels with many time scales, from a Hankel matrix of samples at unevenly spaced times.

An even grid resolves only one time scale. Here the times are taken from adaptive panels, so that every time scale on
which the function changes has the same weight. If ρ is a sum of k modes, H[i, j] = ρ(s_i + s_j) has rank k for any
times s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.constructions.sums._panels import Panels
from stablessm.constructions.sums._samples import Samples

_PER_PANEL = 4  # Gauss-Legendre nodes in each panel
_MOST_NODES = 600
_MOST_ENTRIES = 2 * 10**6  # largest number of entries of the matrix, for kernels with several entries
_NEGLIGIBLE = 1e-15  # smaller singular values, relative to the largest, are rounding errors
_LARGEST_ORDER = 120


@final
@dataclass(frozen=True, eq=False)
class GradedHankel:
    """Decomposition of the Hankel matrix √ω_i ρ(s_i + s_j) √ω_j of a kernel ρ, which yields initial rates.

    The times s_i are unevenly spaced, and ω_i is the weight of time s_i.
    """

    singular_values: np.ndarray
    """Singular values in descending order; approximately the smallest supremum error of each order."""
    _generator: np.ndarray
    """The matrix Σ^-½ Uᴴ H' V Σ^-½, where H' is the Hankel matrix of the derivative ρ'. For a sum of k modes, the
    eigenvalues of its leading k x k block are the rates."""

    def rates(self, order: int) -> np.ndarray:
        """Return ``order`` rates from the leading singular vectors, in conjugate pairs if the kernel is real."""
        return np.linalg.eigvals(self._generator[:order, :order])


def graded_hankel(samples: Samples, panels: Panels) -> GradedHankel:
    """Decompose the weighted Hankel matrix of a function that is sampled on adaptive subintervals (panels)."""
    values = panels.values.reshape(-1, panels.values.shape[2])
    if values.shape[1] > 1:  # as few columns as possible; no singular value changes
        u, s, _ = np.linalg.svd(values, full_matrices=False)
        values = (u * s)[:, s > _NEGLIGIBLE * s[0]]
    panels = panels.with_values(values.reshape(*panels.times.shape, -1))
    entries = panels.values.shape[2]
    nodes, omega = _half_nodes(panels, min(_MOST_NODES, int((_MOST_ENTRIES / entries) ** 0.5)))
    first = panels.left[0]
    omega = omega * samples.weigh(panels.interpolated(first + 2 * nodes)[0])
    value, slope = panels.interpolated((first + nodes[:, None] + nodes).reshape(-1))
    root = np.sqrt(omega)
    H, shifted = (
        (root[:, None, None] * part.reshape(len(nodes), len(nodes), entries) * root[:, None])
        .transpose(0, 2, 1).reshape(-1, len(nodes))
        for part in (value, slope)
    )  # fmt: skip
    u, s, vt = np.linalg.svd(H, full_matrices=False)
    keep = slice(0, max(1, min(_LARGEST_ORDER, int((s > _NEGLIGIBLE * s[0]).sum()))))
    half = np.sqrt(s[keep])
    generator = (u[:, keep] / half).conj().T @ shifted @ (vt[keep].conj().T / half)
    return GradedHankel(s[keep], generator)


def _half_nodes(panels: Panels, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return about ``most`` quadrature nodes between 0 and half the horizon, with weights that sum to one in each
    panel.
    """
    points, weights = np.polynomial.legendre.leggauss(_PER_PANEL)
    some = np.unique(np.linspace(0, len(panels) - 1, max(1, most // _PER_PANEL)).astype(np.int64))
    left, right = ((edge[some, None] - panels.left[0]) / 2 for edge in (panels.left, panels.right))
    nodes = left + (right - left) * (points + 1) / 2
    return nodes.reshape(-1), np.broadcast_to(weights / 2, nodes.shape).reshape(-1)

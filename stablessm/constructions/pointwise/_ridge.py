"""A network with one hidden layer, g(x) = C tanh(A x + b) + c: values, and how much it can bend in a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

_STEEPEST = 4 / 27**0.5
"""max |tanh''|, at tanh² = 1/3."""

_ROUGHEST = 1e-11
"""Singular values below this share of the largest are dropped: the weights stay small enough to be exact."""


@final
@dataclass(frozen=True, eq=False)
class Ridge:
    """C tanh(A x + b) + c; A (m, d), b (m,), C (k, m), c (k,)."""

    A: np.ndarray
    b: np.ndarray
    C: np.ndarray
    c: np.ndarray
    condition: float
    """Of the least squares problem that gave C and c."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) to (n, k)."""
        return np.tanh(x @ self.A.T + self.b) @ self.C.T + self.c

    def rounding(self, size: np.ndarray) -> np.ndarray:
        """(k,) more than what double precision can add to a value at any |x| ≤ size (d,), summed in any order."""
        eps = float(np.finfo(float).eps)
        inputs = np.abs(self.b) + np.abs(self.A) @ size  # tanh has slope one at most
        return 4 * eps * (np.abs(self.C) @ (len(self.b) + inputs) + np.abs(self.c))

    def jet(self, x: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """g at the centres x, and how much it can change in the cells x ± half.

        x, half: (n, d). Returns (n, k) each: g, Σ_i |∂_i g| half_i, and a bound of sup |δ·∇²g δ| over the cell and
        |δ_i| ≤ half_i. A unit sees δ as at most ``reach`` along its direction; units far from the cell are flat there.
        """
        z = x @ self.A.T + self.b
        reach = half @ np.abs(self.A).T
        t = np.tanh(z)
        near = np.maximum(np.abs(z) - reach, 0)
        far = np.abs(z) + reach
        bend = np.minimum(2 * (1 - np.tanh(near) ** 2) * np.tanh(far), _STEEPEST)
        slope = 1 - t**2
        gradient = np.stack([slope @ (self.C * column).T for column in self.A.T], axis=-1)
        second = (bend * reach**2) @ np.abs(self.C).T
        return t @ self.C.T + self.c, (np.abs(gradient) * half[:, None]).sum(-1), second


def fit(A: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> Ridge:
    """The least squares readout of given units: x (n, d), y (n, k)."""
    from scipy.linalg import svd

    features = np.column_stack([np.tanh(x @ A.T + b), np.ones(len(x))])
    U, s, Vt = svd(features, full_matrices=False)
    kept = s > _ROUGHEST * s[0]
    weights = (Vt[kept].T / s[kept]) @ (U[:, kept].T @ y)
    return Ridge(A, b, weights[:-1].T, weights[-1], float(s[0] / s[kept][-1]))

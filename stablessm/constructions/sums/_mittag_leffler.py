"""The Mittag-Leffler function E_α of negative numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

_RANGE = 40.0  # e^-40 of the integrand is negligible
_LARGEST = 700.0  # e^710 overflows
_STEP = 0.05
_CHUNK = 1 << 20


def mittag_leffler(alpha: Any, z: Any) -> np.ndarray:
    """Return the Mittag-Leffler function E_α(z) = Σ_k z^k / Γ(αk + 1) for z ≤ 0 and 0.05 ≤ α ≤ 2.

    The result is NaN for other arguments, and for 0 < |α - 1| < 0.01.

    The function is computed as an integral, by the trapezoidal rule in log u. With x = -z, the integral is sin(απ)/(απ)
    ∫ exp(-(xu)^(1/α)) / (u² + 2u cos(απ) + 1) du over u > 0. For α > 1, the term 2/α exp(x^(1/α) cos(π/α)) cos(x^(1/α)
    sin(π/α)) is added.
    """
    a, x = float(np.asarray(alpha).reshape(-1)[0]), -np.asarray(z, dtype=np.float64)
    if a in (1.0, 2.0):
        with np.errstate(invalid="ignore"):
            return np.where(x >= 0, np.exp(-x) if a == 1 else np.cos(np.sqrt(x)), np.nan)
    if not (0.05 <= a < 2 and abs(a - 1) >= 0.01 and np.size(np.unique(alpha)) == 1):
        return np.full(x.shape, np.nan)
    step = min(_STEP, 0.15 * np.pi * min(abs(1 - a), 2 - a))  # the poles of the integrand are this near, in log u
    log_u = np.arange(-_RANGE, _RANGE, step)
    u, power = np.exp(log_u), np.exp(np.minimum(log_u / a, _LARGEST))
    density = np.sin(a * np.pi) / (a * np.pi) * step * u / (u**2 + 2 * u * np.cos(a * np.pi) + 1)
    root = np.maximum(x, 0).reshape(-1) ** (1 / a)
    value, rows = np.empty(root.shape), max(1, _CHUNK // len(u))
    with np.errstate(over="ignore"):  # e^-inf is 0
        for i in range(0, len(root), rows):
            value[i : i + rows] = np.exp(-root[i : i + rows, None] * power) @ density
    if a > 1:
        value += 2 / a * np.exp(root * np.cos(np.pi / a)) * np.cos(root * np.sin(np.pi / a))
    return np.where(x >= 0, value.reshape(x.shape), np.nan)

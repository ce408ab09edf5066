"""The mode that the residual of a fit asks for, at any times: a matching pursuit over decays and frequencies."""

from __future__ import annotations

from typing import final

import numpy as np

from stablessm.constructions.sums._polish import Fit, Problem, fit_weights, least_squares

_PER_DECADE = 4
_SLOWEST, _FASTEST = 0.3, 10.0  # over the span of the times, and over their shortest gap
_WINDOW = 12.0  # e^-12 is nothing here
_FEWEST = 8
_OVERSAMPLED = 4
_LARGEST = 2**18


@final
class Pursuit:
    """Sums of ever more modes, each from the sum before and the strongest mode in what that one leaves."""

    def __init__(self, problem: Problem, gap: float) -> None:
        self._problem, self._gap = problem, gap
        empty = np.zeros((0, problem.values.shape[1]), dtype=problem.values.dtype)
        self._fits = [Fit(np.empty(0, dtype=np.complex128), empty, problem.error(problem.values), "pursuit")]

    def fit(self, order: int) -> Fit:
        """The sum of up to that many states."""
        while len(self._fits) <= order:
            self._fits.append(self._next())
        return self._fits[order]

    def _next(self) -> Fit:
        found, domain = [self._fits[-1]], self._problem.domain
        for fit, oscillates in ((self._fits[-1], domain.is_complex), (self._fits[-2:][0], True)):
            left = self._problem.values - domain.matrix(fit.rates, self._problem.times) @ fit.coefficients
            rate = strongest(self._problem, left, self._gap)[int(oscillates)]
            if rate is not None and domain.order(fit.rates) + (1 if domain.is_complex or not oscillates else 2) <= len(
                self._fits
            ):
                rates = domain.clip(np.append(fit.rates, rate))
                found.append(
                    least_squares(self._problem, rates, "pursuit")
                    if not domain.positive
                    else fit_weights(self._problem, rates, "pursuit")
                )
        return min(found, key=lambda fit: fit.error)


def strongest(problem: Problem, residual: np.ndarray, gap: float) -> tuple[complex | None, complex | None]:
    """The real rate, and the rate of an oscillation, that would take most of the residual (n, q) away.

    For each decay, the spectrum of the damped residual by FFT: every time counts at the nearest point of a finer grid.
    Frequencies end where the times that the mode lives on have less than two to a cycle. A complex sum has no
    distinction: its one rate comes second.
    """
    domain, since = problem.domain, problem.times - problem.times[0]
    span, power = since[-1], problem.graded**2
    decays = np.geomspace(
        _SLOWEST / span,
        max(_FASTEST / gap, 1 / span),
        max(2, int(_PER_DECADE * np.log10(_FASTEST / gap * span / _SLOWEST))),
    )
    best: list[tuple[float, complex | None]] = [(0.0, None), (0.0, None)]
    for decay in decays:
        inside = max(int(np.searchsorted(since, _WINDOW / decay, "right")), min(_FEWEST, len(since)))
        lived = max(int(np.searchsorted(since, 3 / decay, "right")), min(_FEWEST, len(since)))
        damped = np.exp(-decay * since[:inside])
        weighted = residual[:inside] * (power[:inside] * damped)[:, None]
        energy = float((power[:inside] * damped**2).sum())
        if not energy > 0:
            continue
        real = float((np.abs(weighted.sum(axis=0)) ** 2).sum()) / energy
        if real > best[0][0] and not domain.is_complex:
            best[0] = (real, complex(-decay))
        if domain.real or lived < 4:
            continue
        band = min(domain.band, np.pi / float(np.median(np.diff(since[:lived]))))
        cell = np.pi / band / _OVERSAMPLED
        size = 1 << int(np.ceil(np.log2(since[inside - 1] / cell + 2)))
        if size > _LARGEST:
            cell, size = since[inside - 1] / (_LARGEST - 2), _LARGEST
        at = np.rint(since[:inside] / cell).astype(np.int64)
        total = np.zeros(size)
        for column in weighted.T:
            parts = [
                np.bincount(at, part, size) for part in ((column.real, column.imag) if domain.is_complex else (column,))
            ]
            spectrum = np.fft.fft(parts[0] + 1j * parts[1] if domain.is_complex else parts[0])
            total += np.abs(spectrum) ** 2
        frequencies = 2 * np.pi * np.fft.fftfreq(size) / cell
        allowed = np.abs(frequencies) <= band
        if not domain.is_complex:
            allowed &= frequencies > 0.5 * max(decay, 1 / span)
        if not allowed.any():
            continue
        k = np.flatnonzero(allowed)[np.argmax(total[allowed])]
        gain = (1 if domain.is_complex else 2) * float(total[k]) / energy
        if gain > best[1][0]:
            best[1] = (gain, complex(-decay, frequencies[k]))
    return best[0][1], best[1][1]

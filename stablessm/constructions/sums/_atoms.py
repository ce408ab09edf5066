"""Search for the next mode of an exponential sum: the real decays and damped waves that reduce the residual most."""

from __future__ import annotations

import numpy as np

from stablessm.constructions.sums._modes import Domain

_DECAYS_PER_OCTAVE, _WAVES_PER_OCTAVE = 2, 1  # decay rates that are tried; the optimization refines them
_SLOWEST, _FASTEST = 0.1, 4.0  # divided by the longest time, and by the shortest gap
_ENDED = 12.0  # a mode of decay a is evaluated up to the time 12 / a
_BAND = 3.0  # the samples up to the time 3 / a determine its frequency
_PHASE = 8  # points per shortest period of the grid to which irregular times are rounded
_LARGEST = 1 << 20  # largest number of points of that grid
_INDEPENDENT = 1e-3  # smallest part of a mode that is independent of the previous modes
_OFF_LATTICE = 1e-3  # largest distance of a time from the grid, in steps
_WAVES = 2  # number of waves that are returned


def next_modes(
    domain: Domain, times: np.ndarray, left: np.ndarray, basis: np.ndarray, graded: np.ndarray, gap: float
) -> list[complex]:
    """Return candidate rates for the next mode of a sum: the best real decay and the best damped waves.

    Args:
        domain: the allowed rates.
        times: sample times (n,).
        left: residual of the fit with the modes so far, times ``graded`` (n, q), for a kernel with q entries.
        basis: orthonormal columns that span the modes so far, times ``graded`` (n, k).
        graded: square roots of the weights of the samples (n,), for example 1 / standard deviation of the noise.
        gap: shortest time over which the kernel may change.
    """
    since = times - times[0]
    ends = max(_SLOWEST / since[-1], 1.01 * domain.slowest), max(_FASTEST / gap, 2 * domain.slowest)
    octaves = np.log2(ends[1] / ends[0])
    found = []
    if not domain.is_complex:
        decays = np.geomspace(*ends, max(2, int(_DECAYS_PER_OCTAVE * octaves)))
        columns = np.exp(-since[:, None] * decays) * graded[:, None]
        found.append(complex(-_best_decay(decays, columns, left, basis)))
        if domain.discrete and not domain.real:
            signs = 1 - 2 * (np.rint(times / domain.dt).astype(np.int64) % 2)
            found.append(-_best_decay(decays, columns * signs[:, None], left, basis) + 1j * np.pi / domain.dt)
    if not domain.real:
        decays = np.geomspace(*ends, max(2, int(_WAVES_PER_OCTAVE * octaves)))
        found += _best_waves(domain, since, left * graded[:, None], graded**2, decays, _lattice(since))
    return found


def _lattice(since: np.ndarray) -> float:
    """Return the shortest distance between sample times if all times are multiples of it (up to rounding), else 0."""
    step = float(np.diff(since).min())
    steps = np.rint(since / step)
    if len(since) > 1 and steps[-1] > 0:
        step = float(since[-1] / steps[-1])  # has a smaller rounding error
    return step if np.abs(since - step * steps).max() <= _OFF_LATTICE * step else 0.0


def _best_decay(decays: np.ndarray, columns: np.ndarray, left: np.ndarray, basis: np.ndarray) -> float:
    size = (columns**2).sum(axis=0)
    fresh = size - ((basis.T @ columns) ** 2).sum(axis=0)
    gain = ((left.T @ columns) ** 2).sum(axis=0) / np.maximum(fresh, _INDEPENDENT * size)
    return float(decays[np.argmax(gain)])


def _best_waves(
    domain: Domain, since: np.ndarray, left: np.ndarray, weight: np.ndarray, decays: np.ndarray, lattice: float
) -> list[complex]:
    """Return the rates of the damped waves that reduce the residual most.

    All waves on a grid of decays and frequencies are tried, by FFT; irregular times are rounded to a time grid.

    Args:
        domain: the allowed rates.
        since: sample times minus the first sample time (n,).
        left: residual of the fit with the modes so far, times ``weight`` (n, q).
        weight: weights of the samples (n,).
        decays: decays -Re r to try.
        lattice: distance between sample times on a regular grid, or 0; see :func:`_lattice`.
    """
    best: list[tuple[float, complex]] = []
    for decay in decays:
        seen = since <= _ENDED / decay
        told = int((since <= _BAND / decay).sum())
        if told < 3:
            continue
        if lattice and since[seen][-1] / lattice < _LARGEST:
            band, step = np.pi / lattice, lattice
        else:
            band = np.pi * told / min(_BAND / decay, since[-1])
            step = max(2 * np.pi / band / _PHASE, since[seen][-1] / _LARGEST)
        gains, frequencies = _gains(np.rint(since[seen] / step).astype(np.int64), step, left[seen], weight[seen],
                                    np.exp(-decay * since[seen]), domain.is_complex)  # fmt: skip
        gains[np.abs(frequencies) > min(band, np.inf if domain.discrete else domain.band)] = 0.0
        top = int(np.argmax(gains))
        best.append((float(gains[top]), -decay + 1j * frequencies[top]))
    chosen: list[complex] = []
    for _, rate in sorted(best, key=lambda pair: -pair[0]):
        if all(abs(rate.imag - other.imag) > max(-rate.real, -other.real) for other in chosen):
            chosen.append(rate)
    return chosen[:_WAVES]


def _gains(
    index: np.ndarray, step: float, left: np.ndarray, weight: np.ndarray, decay: np.ndarray, is_complex: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gains of damped waves of all frequencies on a grid, and the frequencies, as two arrays.

    The gain of a wave is the reduction of the sum of squared residuals if the wave is added. All waves have the same
    decaying envelope, and ``decay`` contains the values of this envelope at the times ``index * step``. ``left`` and
    ``weight`` are as in :func:`_best_waves`.
    """
    from scipy import fft

    size = fft.next_fast_len(2 * int(index[-1]) + 2)
    keep = slice(0, size) if is_complex else slice(1, size // 2)
    frequencies = 2 * np.pi * fft.fftfreq(size, step)[keep]
    energy = float(weight @ decay**2)
    along = []
    for column in left.T:
        placed = np.bincount(index, column.real * decay, size).astype(np.complex128)
        if is_complex:
            placed += 1j * np.bincount(index, column.imag * decay, size)
        along.append(fft.fft(placed)[keep])
    if is_complex:
        return sum(np.abs(part) ** 2 for part in along) / energy, frequencies
    # cosine and sine are not orthogonal: their Gram matrix, from the spectrum at twice the frequency
    twice = fft.fft(np.bincount(index, weight * decay**2, size))[2 * np.arange(size)[keep] % size]
    cosines, sines, mixed = (energy + twice.real) / 2, (energy - twice.real) / 2, -twice.imag / 2
    area = np.maximum(cosines * sines - mixed**2, _INDEPENDENT * energy**2)
    total = sum(p.real**2 * sines + 2 * p.real * p.imag * mixed + p.imag**2 * cosines for p in along)
    return total / area, frequencies

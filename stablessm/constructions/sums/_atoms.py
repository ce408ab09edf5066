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
_WAVES = 3  # number of waves that are returned


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
        found += _best_waves(domain, since, left, basis, graded, decays)
    return found


def _lattice(since: np.ndarray) -> float:
    """Return the shortest distance between sample times if all times are multiples of it (up to rounding), else 0."""
    step = float(np.diff(since).min())
    steps = np.rint(since / step)
    step = float(since[-1] / steps[-1])  # has a smaller rounding error
    return step if np.abs(since - step * steps).max() <= _OFF_LATTICE * step else 0.0


def _best_decay(decays: np.ndarray, columns: np.ndarray, left: np.ndarray, basis: np.ndarray) -> float:
    size = (columns**2).sum(axis=0)
    fresh = size - ((basis.T @ columns) ** 2).sum(axis=0)
    gain = ((left.T @ columns) ** 2).sum(axis=0) / np.maximum(fresh, _INDEPENDENT * size)
    return float(decays[np.argmax(gain)])


def _best_waves(
    domain: Domain, since: np.ndarray, left: np.ndarray, basis: np.ndarray, graded: np.ndarray, decays: np.ndarray
) -> list[complex]:
    """Return the rates of the damped waves that reduce the residual most.

    All waves on a grid of decays and frequencies are tried, by FFT; irregular times are rounded to a time grid.

    Args:
        domain: the allowed rates.
        since: sample times minus the first sample time (n,).
        left, basis, graded: as in :func:`next_modes`.
        decays: decays -Re r to try.
    """
    lattice = _lattice(since)
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
        index, envelope = np.rint(since[seen] / step).astype(np.int64), graded[seen] * np.exp(-decay * since[seen])
        gains, frequencies = _gains(index, step, left[seen], basis[seen], envelope, domain.is_complex)
        gains[np.abs(frequencies) > min(band, np.inf if domain.discrete else domain.band)] = 0.0
        peaks = np.flatnonzero((gains >= np.roll(gains, 1)) & (gains >= np.roll(gains, -1)) & (gains > 0))
        highest = peaks[np.argsort(-gains[peaks])[:_WAVES]]
        best += [(float(gains[top]), complex(-decay, frequencies[top])) for top in highest]
    chosen: list[complex] = []
    for _, rate in sorted(best, key=lambda pair: -pair[0]):
        if all(abs(rate.imag - other.imag) > max(-rate.real, -other.real) for other in chosen):
            chosen.append(rate)
    return chosen[:_WAVES]


def _gains(
    index: np.ndarray, step: float, left: np.ndarray, basis: np.ndarray, envelope: np.ndarray, is_complex: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gains of damped waves of all frequencies on a grid, and the frequencies, as two arrays.

    The gain of a wave is the reduction of the sum of squared residuals if the wave is added and the weights of the
    modes so far are fitted again. All waves have the same decaying envelope, and ``envelope`` contains the values of
    this envelope at the times ``index * step``, times ``graded``. ``left`` and ``basis`` are as in :func:`next_modes`.
    """
    from scipy import fft

    size = fft.next_fast_len(2 * int(index[-1]) + 2)
    keep = slice(0, size) if is_complex else slice(1, size // 2)

    def spectra(columns: np.ndarray) -> list[np.ndarray]:
        parts = ([np.bincount(index, part * envelope, size) for part in (c.real, c.imag)] for c in columns.T)
        return [fft.fft(real + 1j * imag)[keep] for real, imag in parts]

    frequencies, energy = 2 * np.pi * fft.fftfreq(size, step)[keep], float(envelope @ envelope)
    along, known, least = spectra(left), spectra(basis), _INDEPENDENT * energy
    if is_complex:
        fresh = energy - sum(np.abs(part) ** 2 for part in known)
        return sum(np.abs(part) ** 2 for part in along) / np.maximum(fresh, least), frequencies
    # cosine and sine are not orthogonal: their Gram matrix, from the spectrum at twice the frequency
    twice = fft.fft(np.bincount(index, envelope**2, size))[2 * np.arange(size)[keep] % size]
    cosines = (energy + twice.real) / 2 - sum(part.real**2 for part in known) + least
    sines = (energy - twice.real) / 2 - sum(part.imag**2 for part in known) + least
    mixed = -twice.imag / 2 + sum(part.real * part.imag for part in known)
    total = sum(p.real**2 * sines + 2 * p.real * p.imag * mixed + p.imag**2 * cosines for p in along)
    return total / np.maximum(cosines * sines - mixed**2, least**2), frequencies

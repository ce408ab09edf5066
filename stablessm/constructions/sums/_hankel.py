"""Decomposition of the Hankel matrix of samples.

The singular values bound the error of every exponential sum from below, and the singular vectors give initial rates for
a fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

DENSE = 2000
"""Longest horizon whose Hankel matrix is stored; a longer matrix is only multiplied with vectors, by FFT."""

_NEGLIGIBLE = 1e-13  # combinations of entries with smaller singular values, relative to the largest, are dropped


@final
@dataclass(frozen=True, eq=False)
class Hankel:
    """Decomposition of the square Hankel matrix H[i, j] = ρ(i + j), 0 ≤ i + j ≤ T, of evenly spaced samples.

    The entries of a matrix-valued ρ are stacked along i.
    """

    singular_values: np.ndarray
    """Singular values in descending order; for a long horizon only the first few, as Ritz values (never too large)."""
    left: np.ndarray
    """Left singular vectors (rows, entries, r)."""
    padded: bool = False
    """Whether ρ is extended by zeros beyond its samples, so that i and j run to T."""

    def eigenvalues(self, order: int) -> np.ndarray:
        """Return ``order`` eigenvalues of a recurrence that fits the samples, from the singular vectors (ERA, ESPRIT).

        Let U be the matrix of the first ``order`` singular vectors. The method returns the eigenvalues λ of the matrix
        A that solves U[1:] = U[:-1] A by least squares. (U has orthonormal columns, so the Gram matrix of U[:-1] is I
        minus the outer product of the last row.) If ρ is padded, A is a contraction: all |λ| ≤ 1.
        """
        order = min(order, self.left.shape[2], len(self.left) - 1)
        if not order:
            return np.empty(0)
        basis = self.left[:, :, :order]
        last = basis[-1]
        gram = np.eye(order) - (0.0 if self.padded else last.conj().T @ last)
        before, after = basis[:-1].reshape(-1, order), basis[1:].reshape(-1, order)
        return np.linalg.eigvals(np.linalg.lstsq(gram, before.conj().T @ after, rcond=None)[0])


def hankel(values: np.ndarray, *, padded: bool = False) -> Hankel:
    """Decompose the whole Hankel matrix of n samples by a singular value decomposition; n is at most ``DENSE`` + 1.

    ``values`` (n, q) contains the samples of a kernel with q entries. If ``padded``, the samples are extended by zeros.
    """
    values, rows = _prepared(values, padded)
    index = np.arange(rows)[:, None] + np.arange(len(values) - rows + 1)
    stacked = values[index].transpose(0, 2, 1)  # rows, entries, columns
    if stacked.shape == (rows, 1, rows) and np.isrealobj(stacked):  # symmetric: several times faster
        eigenvalues, vectors = np.linalg.eigh(stacked[:, 0])
        largest = np.argsort(-np.abs(eigenvalues))
        return Hankel(np.abs(eigenvalues[largest]), vectors[:, None, largest], padded)
    u, s, _ = np.linalg.svd(stacked.reshape(-1, stacked.shape[2]), full_matrices=False)
    return Hankel(s, u.reshape(rows, values.shape[1], -1), padded)


def long_hankel(values: np.ndarray, width: int, *, padded: bool = False, rounds: int = 1) -> Hankel:
    """Return the ``width`` largest singular values of the Hankel matrix of samples (times, entries), with their
    vectors.

    The method is randomized (Halko 2011), with ``rounds`` power iterations, and does not store the Hankel matrix. If
    ``padded``, the samples are extended by zeros.
    """
    values, rows = _prepared(values, padded)
    columns = len(values) - rows + 1
    q = np.random.default_rng(0).standard_normal((columns, min(width, columns)))
    for _ in range(rounds):
        q, _ = np.linalg.qr(_transposed_product(values, _product(values, q, rows), columns))
    u, s, _ = np.linalg.svd(_product(values, q, rows).reshape(-1, q.shape[1]), full_matrices=False)
    return Hankel(s, u.reshape(rows, values.shape[1], -1), padded)


def _product(values: np.ndarray, block: np.ndarray, rows: int) -> np.ndarray:
    """Multiply the Hankel matrix of ρ by k vectors with an FFT: Σ_j ρ(i + j) block[j], an array (rows, q, k).

    ``values`` (times, q) contains ρ, and ``block`` (columns, k) contains the vectors.
    """
    from scipy import fft

    columns = len(block)
    real = np.isrealobj(values) and np.isrealobj(block)
    there, back = (fft.rfft, fft.irfft) if real else (fft.fft, fft.ifft)
    size = fft.next_fast_len(len(values), real=real)  # only rows that are not used wrap around
    spectra = [there(entry, size) for entry in values.T]
    out = np.empty((rows, values.shape[1], block.shape[1]), dtype=np.result_type(values, block), order="F")
    for k, column in enumerate(block.T):
        other = there(column[::-1], size)
        for entry, spectrum in enumerate(spectra):
            out[:, entry, k] = back(spectrum * other, size)[columns - 1 : columns - 1 + rows]
    return out


def _transposed_product(values: np.ndarray, block: np.ndarray, columns: int) -> np.ndarray:
    """Multiply the adjoint Hankel matrix by a block of vectors with an FFT: Σ_i,q ρ_q(i + j)* block[i, q], (columns,
    k).
    """
    total = np.zeros((columns, block.shape[2]), dtype=np.result_type(values, block))
    for entry in range(values.shape[1]):
        total += _product(values[:, entry : entry + 1].conj(), block[:, entry], columns)[:, 0]
    return total


def _prepared(values: np.ndarray, padded: bool) -> tuple[np.ndarray, int]:
    """Return samples with as few columns as possible, and the number of rows of their Hankel matrix.

    The columns are combined so that the singular values of the Hankel matrix do not change. If ``padded``, the samples
    are extended by zeros.
    """
    if values.shape[1] > 1:
        u, s, _ = np.linalg.svd(values, full_matrices=False)
        keep = max(1, int((s > _NEGLIGIBLE * s[0]).sum()))
        values = u[:, :keep] * s[:keep]
    if padded:
        values = np.concatenate([values, np.zeros((len(values) - 1, values.shape[1]))])
    return values, len(values) // 2 + 1

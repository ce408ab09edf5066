"""Reconstructs images from the last state of a linear recurrence that has read their pixels one by one; shared by
figures 2 to 5 of LRU-UA.

In the functions below, ``placement`` says where the eigenvalues are (on a ring, at the roots of unity, or at optimized
places), ``solver`` is a key of ``SOLVERS``, and ``found`` is the dict that :func:`measured` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Panel, Run, Series, Stages, stage
from stablessm.experiments.lru_ua.digits import Source, digits
from stablessm.reconstruction import Decoder, condition_number, optimized, roots_of_unity, uniform_ring
from stablessm.report.figure import ImageGrid
from stablessm.scan.vandermonde import powers

Placement: TypeAlias = float | Literal["roots", "optimized"]
"""r_min of a random ring with r_max = 1, or the name of a placement of the eigenvalues."""

Case: TypeAlias = tuple[Placement, int, str]
"""Placement, N and solver."""

SOLVERS = {"complex": "V⁺ as published", "real": "for real inputs"}
"""Solvers: the pseudo-inverse of V, of whose result the real part is taken, and the pseudo-inverse of the real and
imaginary parts of V, which is a system of twice as many equations."""

INDEX = {solver: i for i, solver in enumerate(SOLVERS)}
CHUNK = 1000
"""Number of images that are reconstructed at a time."""


@dataclass(frozen=True)
class DigitsConfig:
    """Settings of the experiments that reconstruct images: data, state sizes, rings and thresholds. Where LRU-UA,
    appendix E.1 gives a value, this value is the default.
    """

    data: Source = "mnist"
    images: int = 10_000
    side: int = 28
    sizes: tuple[int, ...] = (128, 256, 512, 784)
    """State sizes N."""
    rings: tuple[float, ...] = (0.0, 0.9, 0.99)
    """Inner radii r_min of the rings; the outer radius is 1."""
    draws: int = 10
    """Number of draws of random eigenvalues."""
    shown: int = 6
    perfect: float = 1e-3
    """Largest mean square error of an image that counts as perfect (8 of 255 gray levels); up to ten times this value,
    the verdict is ``partly``."""
    satisfactory: float = 0.2
    """Largest fraction of the energy that may be missing in a satisfactory image."""
    fair: float = 0.5
    """Largest fraction of the energy that may be missing in a partly satisfactory image."""
    lacking: float = 0.1
    """Pixels count as reconstructed if at most this fraction of their energy is missing."""
    recent: tuple[float, ...] = (0.1, 0.7)
    """The reconstructed pixels count as the recent past if their fraction of all pixels lies between these two
    values."""

    @property
    def length(self) -> int:
        """Return the number L of pixels of an image."""
        return self.side**2

    def is_recent(self, covered: int) -> bool:
        """Return True if ``covered``, a number of reconstructed pixels, lies in the range that counts as the recent
        past of an image.
        """
        return self.recent[0] * self.length < covered < self.recent[1] * self.length


@cache
def pixels(config: DigitsConfig) -> Tensor:
    """Return the images as sequences of pixels, (images, pixels)."""
    return torch.from_numpy(digits(config.data, config.images, config.side).reshape(config.images, -1))


@cache
def factor(config: DigitsConfig) -> Tensor:
    """Return the triangular factor R of a QR decomposition of the matrix whose rows are the images; R has at most as
    many rows as an image has pixels.

    The reconstruction is linear, so the sum of squared errors over all images equals the sum of squared errors over the
    rows of R. R has far fewer rows than there are images. The experiment lr-fig2 compares both sums.
    """
    return torch.linalg.qr(pixels(config), mode="r")[1]


@stage("images")
def seen(config: DigitsConfig, run: Run) -> Mapping[str, Tensor]:
    """Return two arrays: ``energy``, the mean square over all images of the pixel at each position; and ``shown``, the
    images that the figures show.
    """
    return {"energy": factor(config).square().sum(0) / config.images, "shown": pixels(config)[: config.shown]}


def eigenvalues(placement: Placement, size: int, length: int, draw: int = 0) -> Tensor:
    """Return the eigenvalues, (size,) complex128, of a placement: roots of unity, optimized eigenvalues, or random
    eigenvalues on a ring, drawn with the seed ``draw``.
    """
    if placement == "roots":
        return roots_of_unity(size)
    return optimized(size, length) if placement == "optimized" else uniform_ring(size, float(placement), seed=draw)


def last_states(u: Tensor, lam: Tensor) -> Tensor:
    """Return the state (…, N) of a linear recurrence with the eigenvalues ``lam`` (N,) after the last of the inputs u
    (…, L): x = Σ_j λ^(L-1-j) u_j (LRU-UA, equation 4).
    """
    V = powers(lam, u.shape[-1]).flip(0)
    return torch.complex(u @ V.real, u @ V.imag)


def read_back(u: Tensor, decoder: Decoder, lam: Tensor) -> Tensor:
    """Compute the state after the last step of the inputs u, and return the inputs (…, L) that the decoder reconstructs
    from this state.
    """
    found = decoder(last_states(u, lam))
    return found.real if found.is_complex() else found


def differences(config: DigitsConfig, placement: Placement, size: int) -> Iterable[Tensor]:
    """Reconstruct the images by the pseudo-inverse of the matrix V that maps the pixels to the state, with the first
    draw of eigenvalues. Yield reconstructed minus true pixels, for ``CHUNK`` images at a time.
    """
    lam = eigenvalues(placement, size, config.length)
    decoder = Decoder(lam, config.length, real=False)
    return (read_back(part, decoder, lam) - part for part in pixels(config).split(CHUNK))


def _name(placement: Placement, size: int) -> str:
    return f"{placement if isinstance(placement, str) else f'ring-{placement:g}'}-{size}"


@stage(_name, over=lambda config: [(ring, size) for size in config.sizes for ring in config.rings])
def measured(config: DigitsConfig, run: Run, placement: Placement, size: int) -> Mapping[str, np.ndarray]:
    """Reconstruct the images with both solvers, ``complex`` and ``real``, for every draw of the random eigenvalues.

    Return a dict with the following arrays. ``mse`` (draws, solvers): mean square errors. ``rank`` and ``condition``
    (draws, solvers): the rank and the condition number of the matrix that maps the pixels to the state. ``by position``
    (solvers, L): the mean square error at each of the L pixels. ``shown`` (solvers, images, L): some images,
    reconstructed with the first draw. A placement of eigenvalues that is not random has one draw.
    """

    def one(draw: int) -> Mapping[str, np.ndarray]:
        lam = eigenvalues(placement, size, config.length, draw)
        rows, first = factor(config), pixels(config)[: config.shown]
        decoders = [Decoder(lam, config.length, real=solver == "real") for solver in SOLVERS]
        errors = [(read_back(rows, decoder, lam) - rows).square().sum(0) / config.images for decoder in decoders]
        return {
            "mse": np.array([float(error.mean()) for error in errors]),
            "by position": torch.stack(errors).numpy(),
            "rank": np.array([decoder.diagnosis.rank for decoder in decoders]),
            "condition": np.array([condition_number(lam, config.length, real=solver == "real") for solver in SOLVERS]),
            "shown": torch.stack([read_back(first, decoder, lam) for decoder in decoders]).float().numpy(),
        }

    found = [one(draw) for draw in range(1 if isinstance(placement, str) else config.draws)]
    kept = {key: np.stack([row[key] for row in found]) for key in ("mse", "rank", "condition")}
    return {**kept, "by position": np.mean([row["by position"] for row in found], 0), "shown": found[0]["shown"]}


def error(found: Mapping[str, np.ndarray], solver: str) -> float:
    """Return the mean square error of the reconstructed images: the mean over images, pixels and draws of the
    eigenvalues.
    """
    return float(found["mse"][:, INDEX[solver]].mean())


def condition(found: Mapping[str, np.ndarray], solver: str) -> float:
    """Return the condition number of the matrix V that maps inputs to the state; for the real solver, V is split into
    real and imaginary parts. The result is the median over the draws of the eigenvalues.
    """
    return float(np.median(found["condition"][:, INDEX[solver]]))


def middle(found: Mapping[str, np.ndarray], solver: str) -> float:
    """Return the median of the mean square errors of the reconstructed images over the draws of the eigenvalues. For
    each draw, the square error is averaged over images and pixels.
    """
    return float(np.median(found["mse"][:, INDEX[solver]]))


def spread(found: Mapping[str, np.ndarray], solver: str) -> str:
    """Return the mean square error of the reconstructed images as text: its median and, if there are several draws of
    the eigenvalues, its range over the draws.
    """
    values = found["mse"][:, INDEX[solver]]
    median = f"{middle(found, solver):.1e}"
    return median if len(values) == 1 else f"{median} in the median ({values.min():.0e} to {values.max():.0e})"


def missing(stages: Stages, found: Mapping[str, np.ndarray], solver: str) -> float:
    """Return the mean square error of the reconstructed images divided by the mean square of the pixels."""
    return error(found, solver) / float(seen(stages)["energy"].mean())


def reach(config: DigitsConfig, stages: Stages, found: Mapping[str, np.ndarray], solver: str) -> int:
    """Return the largest number n such that almost all energy (mean square) of the n most recent pixels is
    reconstructed.
    """
    missed = np.cumsum(found["by position"][INDEX[solver]][::-1])
    there = np.cumsum(seen(stages)["energy"][::-1])
    good = np.flatnonzero((missed <= config.lacking * there) & (there > 0))
    return int(good[-1]) + 1 if len(good) else 0


def digit_rows(config: DigitsConfig, stages: Stages, title: str, cases: Mapping[str, Case]) -> ImageGrid:
    """Return a grid of images: the original images in the top row, and below them one row of reconstructed images for
    each case. ``cases`` maps labels to cases: tuples (placement, state size, solver).
    """
    rows = {"original": seen(stages)["shown"]}
    for label, (placement, size, solver) in cases.items():
        rows[label] = measured(stages, placement, size)["shown"][INDEX[solver]]
    square = (config.shown, config.side, config.side)
    return ImageGrid.of(title, {label: images.reshape(square) for label, images in rows.items()})


def position_panel(config: DigitsConfig, stages: Stages, cases: Mapping[str, Case]) -> Panel:
    """Return a panel of the mean square error of the reconstruction against the position in the sequence. ``cases``
    maps the labels of the lines to cases: tuples (placement, state size, solver).
    """
    x = range(1, config.length + 1)
    lines = [
        Series(label, x, measured(stages, placement, size)["by position"][INDEX[solver]])
        for label, (placement, size, solver) in cases.items()
    ]
    lines.append(Series("nothing read back", x, seen(stages)["energy"], "dotted"))
    return Panel("error by position", "position (last = most recent)", "mean square error", lines, y_scale="log")

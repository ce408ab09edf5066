"""Loads images to reconstruct: MNIST digits, or synthetic images of strokes for a quick test."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError
from stablessm.tasks.images import official_test_images

Source: TypeAlias = Literal["mnist", "synthetic"]


def digits(source: Source, count: int, side: int = 28) -> np.ndarray:
    """Return images (count, side, side) in float64, with values from 0 to 1.

    ``mnist``: the first ``count`` of the 10,000 official test images, from ``mnist.npz`` (array ``x_test``, whole
    numbers up to 255) in the folder that the environment variable STABLESSM_DATA names; without this variable, from the
    Hugging Face hub. ``synthetic``: arcs on an empty background, the same in every call.

    >>> images = digits("synthetic", 3, side=12)
    >>> images.shape, float(images.min()), bool(0.05 < images.mean() < 0.5)
    ((3, 12, 12), 0.0, True)
    """
    one_of("data", source, get_args(Source))
    if count < 1 or side < 2:
        raise ArgumentError("images, side", "at least 1 and 2", f"{count}, {side}")
    if source == "synthetic":
        return _strokes(count, side)
    images = official_test_images("mnist")
    if images.ndim != 3 or images.shape[1:] != (side, side) or len(images) < count:
        raise ArgumentError("mnist", f"{count} images of {side} x {side} pixels or more images", images.shape)
    if not np.issubdtype(images.dtype, np.integer):
        raise ArgumentError("mnist", "whole numbers from 0 to 255", images.dtype)
    return images[:count] / 255.0


def _strokes(count: int, side: int) -> np.ndarray:
    """Return synthetic images: two arcs with soft edges on a black background."""
    rng = np.random.default_rng(0)
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    images = np.zeros((count, side, side))
    for image in images:
        for _ in range(2):
            (cx, cy), radius = rng.uniform(0.3, 0.7, 2), rng.uniform(0.15, 0.3)
            middle, half = rng.uniform(0, 2 * np.pi), rng.uniform(1.0, np.pi)
            turned = (np.arctan2(y - cy, x - cx) - middle + np.pi) % (2 * np.pi) - np.pi
            thickness = np.abs(np.hypot(x - cx, y - cy) - radius) / 0.08
            image[:] = np.maximum(image, np.clip(1.5 - thickness, 0, 1) * (np.abs(turned) < half))
    return images

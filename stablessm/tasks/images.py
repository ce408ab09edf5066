"""Image classification with one pixel per step: sequential and permuted MNIST, CIFAR-10 in gray and in color."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np
import torch

from stablessm._errors import ArgumentError
from stablessm.tasks import counter, sources
from stablessm.tasks.base import Inputs, Outputs, Split
from stablessm.tasks.options import Options, option
from stablessm.tasks.stored import StoredTask, share

Data: TypeAlias = Literal["mnist", "cifar10-gray", "cifar10"]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_FILES: Final[dict[Data, str]] = {"mnist": "mnist.npz", "cifar10-gray": "cifar10_gray.npz", "cifar10": "cifar10.npz"}
_HUBS: Final[dict[Data, tuple[str, str]]] = {
    "mnist": ("ylecun/mnist", "image"),
    "cifar10-gray": ("uoft-cs/cifar10", "img"),
    "cifar10": ("uoft-cs/cifar10", "img"),
}
"""Name of each data set on the Hugging Face hub, and the column of the images."""
_SUMS: Final[dict[str, tuple[int, ...]]] = {
    "ylecun/mnist": (1_567_298_545,),
    "uoft-cs/cifar10": (6_415_714_204, 6_295_060_180, 5_829_907_619),
}
"""Sum of all training pixels of each channel, to check the images from the hub."""
_SIDES: Final[dict[Data, tuple[int, ...]]] = {"mnist": (28, 28), "cifar10-gray": (32, 32), "cifar10": (32, 32, 3)}
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "mnist": tuple("0123456789"),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


@final
@dataclass(frozen=True)
class ImageOptions(Options):
    """Options of sequential images: the fraction held out for validation and the order of the pixels."""

    valid: float = option(0.1, "fraction of the training images, at their end, for validation")
    permutation_seed: int | None = option(None, "seed of a fixed random order of the pixels (default: row after row)")


@final
class SequentialImages(StoredTask):
    """Classification of images that are read one pixel per step. Inputs are (B, 784, 1) for MNIST, (B, 1024, 1) for
    CIFAR-10 in gray and (B, 1024, 3) in color.

    These are the tasks of StableSSM tables 5 and 6, with the official test images. The validation split is the last
    tenth of the training images (``valid``). Pixels are standardized by the mean and standard deviation of all official
    training images, each color separately. Images are stored as bytes: ``task.to("cuda")`` moves them once, and batches
    are created on the device.

    The files ``mnist.npz``, ``cifar10_gray.npz`` and ``cifar10.npz`` (arrays ``x_train``, ``y_train``, ``x_test``,
    ``y_test``; pixels from 0 to 255) are read from the folder that the environment variable STABLESSM_DATA names.
    Without this variable they are downloaded from the Hugging Face hub.

    >>> import os
    >>> from stablessm import tasks
    >>> if "STABLESSM_DATA" in os.environ:
    ...     task = tasks.get("mnist")
    ...     assert task.batch("train", 32).inputs.shape == (32, 784, 1) and task.sizes["valid"] == 6000
    """

    def __init__(self, options: ImageOptions, name: str = "mnist", data: Data = "mnist") -> None:
        self.name, self.options = name, options
        arrays = load(data)
        x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
        self.content = sources.content_digest(*arrays)
        channels = 3 if x_train.dim() == 4 else 1
        x_train, x_test = (x.reshape(len(x), -1, channels) for x in (x_train, x_test))
        if options.permutation_seed is not None:
            key = counter.keys((options.permutation_seed,), torch.zeros(1, dtype=torch.int64))
            order = counter.permutations(key, 0, x_train.shape[1])[0]
            x_train, x_test = x_train[:, order], x_test[:, order]
        seen = len(x_train) - round(share("valid", options.valid) * len(x_train))
        self._store(
            {"train": x_train[:seen], "valid": x_train[seen:], "test": x_test},
            {"train": y_train[:seen], "valid": y_train[seen:], "test": y_test},
            scale=_moments(arrays[0].reshape(-1, channels)),
        )
        self.inputs = Inputs("values", channels, x_train.shape[1])
        self.outputs = Outputs("classes", 10, per_step=False, names=_NAMES[data.split("-")[0]])


def load(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read a data set and return training images, training labels, test images and test labels (uint8 and int64)."""
    path = sources.find(_FILES[data])
    if path is None:
        where, found = _HUBS[data][0], tuple(part for split in ("train", "test") for part in _hub(data, split))
    else:
        where, found = str(path), sources.arrays(path, ARRAYS)
    x_train, y_train, x_test, y_test = found
    _check(where, "train", x_train, y_train, _SIDES[data])
    _check(where, "test", x_test, y_test, _SIDES[data])
    return x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64)


def official_test_images(data: Data) -> np.ndarray:
    """Return the official test images of a data set, unprocessed (uint8)."""
    path = sources.find(_FILES[data])
    if path is not None:
        return sources.arrays(path, ("x_test",))[0]
    return _stacked(sources.from_hub(_HUBS[data][0], "test", _FILES[data]), data)


def _hub(data: Data, split: str) -> tuple[np.ndarray, np.ndarray]:
    rows = sources.from_hub(_HUBS[data][0], split, _FILES[data])
    images = _stacked(rows, data)
    if split == "train":
        expected = _SUMS[_HUBS[data][0]]
        came = tuple(images.reshape(-1, len(expected)).sum(0, dtype=np.int64).tolist())
        if came != expected:
            raise ArgumentError(_HUBS[data][0], f"training pixels that sum to {expected}", came)
    return (_gray(images) if data == "cifar10-gray" else images), np.asarray(rows["label"])


def _stacked(rows: Any, data: Data) -> np.ndarray:
    return np.stack([np.asarray(image) for image in rows[_HUBS[data][1]]])


def _gray(images: np.ndarray) -> np.ndarray:
    """Convert colors to gray: 0.299 R + 0.587 G + 0.114 B, rounded to the nearest integer (halves to even)."""
    whole, rest = np.divmod(images.astype(np.int64) @ np.array([299, 587, 114]), 1000)
    return (whole + ((rest > 500) | ((rest == 500) & (whole % 2 == 1)))).astype(np.uint8)


def _check(where: str, split: Split, x: np.ndarray, y: np.ndarray, sides: tuple[int, ...]) -> None:
    if x.dtype != np.uint8 or x.shape[1:] != sides or not len(x):
        expected = f"x_{split}, bytes of shape (n, {', '.join(map(str, sides))})"
        raise ArgumentError(where, expected, f"{x.dtype} {x.shape}")
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() > 9:
        raise ArgumentError(where, f"y_{split}, {len(x)} whole numbers from 0 to 9", f"{y.dtype} {y.shape}")


def _moments(pixels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exact mean and standard deviation of each color channel, from a histogram of the 256 byte values."""
    counts = np.stack([np.bincount(channel, minlength=256) for channel in pixels.T])
    shades = np.arange(256)
    mean = counts @ shades / len(pixels)
    deviation = np.sqrt((counts * (shades - mean[:, None]) ** 2).sum(1) / len(pixels))
    return torch.from_numpy(mean).float(), torch.from_numpy(np.where(deviation > 0, deviation, 1.0)).float()

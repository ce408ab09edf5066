"""Hourly series: the ETTh1 file, or made up."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments import data_folder

Source: TypeAlias = Literal["etth1", "synthetic"]
FILE = "ETTh1.csv.gz"
CHANNELS = 7
DAY = 24
_EXPECTED = f"a CSV file of a date and {CHANNELS} numbers a row"


def hourly(source: Source, hours: int) -> np.ndarray:
    """The first hours of seven channels, (hours, 7).

    ``etth1``: electricity transformer temperature and loads, from the folder that the environment variable
    STABLESSM_DATA names. ``synthetic``: daily and weekly waves with noise that lasts some hours.

    >>> hourly("synthetic", 100).shape
    (100, 7)
    """
    if source not in get_args(Source):
        raise ArgumentError("data", f"one of {', '.join(get_args(Source))}", repr(source))
    if source == "synthetic":
        return _made_up(hours)
    path = data_folder.find(FILE)
    if path is None:
        raise ArgumentError(data_folder.VARIABLE, f"a folder with {FILE}", "no such variable")
    found = _file(path)
    if len(found) < hours:
        raise ArgumentError(FILE, f"{hours} rows or more", len(found))
    return found[:hours]


def _file(path: Path) -> np.ndarray:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()[1:]
        found = np.genfromtxt(lines, delimiter=",", ndmin=2) if lines else np.empty((0, 0))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ArgumentError(path.name, _EXPECTED, f"{type(error).__name__}") from error
    if found.shape[1] != 1 + CHANNELS:
        raise ArgumentError(path.name, _EXPECTED, f"shape {found.shape}")
    found = found[:, 1:]  # the date is no number
    if not np.isfinite(found).all():
        raise ArgumentError(path.name, "finite numbers", "NaN or infinity")
    return found


def _made_up(hours: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    t, phase = np.arange(hours)[:, None], rng.uniform(0, 2 * np.pi, CHANNELS)
    noise = rng.standard_normal((hours, CHANNELS))
    for k in range(1, hours):
        noise[k] = 0.8 * noise[k - 1] + 0.3 * noise[k]
    return np.asarray(np.sin(2 * np.pi * t / DAY + phase) + 0.5 * np.cos(2 * np.pi * t / (7 * DAY) + phase) + noise)

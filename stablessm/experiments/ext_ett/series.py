"""Hourly series: the ETTh1 file, or made up."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments import data_folder

Source: TypeAlias = Literal["etth1", "synthetic"]
FILE = "ETTh1.csv.gz"
CHANNELS = 7
DAY = 24


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
            found = np.genfromtxt(file, delimiter=",", skip_header=1, usecols=range(1, 1 + CHANNELS))
    except (OSError, EOFError, ValueError) as error:
        raise ArgumentError(path.name, "a CSV file of a date and 7 numbers a row", f"{type(error).__name__}") from error
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

"""Hourly series: the ETTh1 file, or a synthetic series."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.tasks import forecasting, sources
from stablessm.tasks.forecasting import CHANNELS, FILE

Source: TypeAlias = Literal["etth1", "synthetic"]
DAY = 24


def hourly(source: Source, hours: int) -> np.ndarray:
    """Return the first hours of seven channels, (hours, 7).

    ``etth1``: electricity transformer temperature and loads, from the folder that the environment variable
    STABLESSM_DATA names. ``synthetic``: daily and weekly waves with noise that lasts some hours.

    >>> hourly("synthetic", 100).shape
    (100, 7)
    """
    if source not in get_args(Source):
        raise ArgumentError("data", f"one of {', '.join(get_args(Source))}", repr(source))
    if source == "synthetic":
        return _made_up(hours)
    if sources.find(FILE) is None:
        raise ArgumentError(sources.VARIABLE, f"a folder with {FILE}", "no such variable")
    _, found = forecasting.read()
    if len(found) < hours:
        raise ArgumentError(FILE, f"{hours} rows or more", len(found))
    return found[:hours]


def _made_up(hours: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    t, phase = np.arange(hours)[:, None], rng.uniform(0, 2 * np.pi, CHANNELS)
    noise = rng.standard_normal((hours, CHANNELS))
    for k in range(1, hours):
        noise[k] = 0.8 * noise[k - 1] + 0.3 * noise[k]
    return np.asarray(np.sin(2 * np.pi * t / DAY + phase) + 0.5 * np.cos(2 * np.pi * t / (7 * DAY) + phase) + noise)

"""The ETTh1 forecasting task: hourly load and oil temperature of an electricity transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.tasks import csv_file, sources
from stablessm.tasks.base import Split
from stablessm.tasks.options import Options, option
from stablessm.tasks.windows import WindowTask

FILE = "ETTh1.csv.gz"
CHANNELS = 7
_HUB = ("pkr7098/etth1", "ETTh1.csv")
_CONTENT = "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"
_EXPECTED = f"a CSV file with a date and {CHANNELS} numbers per row"
ROWS: Final[dict[Split, int]] = {"train": 8640, "valid": 2880, "test": 2880}
"""Number of hours in each split of the literature: 12, 4 and 4 months of 30 days."""


@final
@dataclass(frozen=True)
class ForecastingOptions(Options):
    """Options of ETTh1: window, horizon, columns and metric. The defaults are common in the literature on long-horizon
    forecasting.
    """

    window: int = option(336, "number of hours that the model sees")
    horizon: int = option(96, "number of hours that it forecasts; 96, 192, 336 and 720 are usual")
    columns: Literal["all", "OT"] = option("all", "all seven channels, or only the oil temperature")
    metric: Literal["mse", "mae"] = option("mse", "metric")


@final
class ETTh1(WindowTask):
    """Forecasting of ETTh1 (Zhou et al. 2021): 8640 hours for training, then 2880 for validation and 2880 for the test.

    The file ``ETTh1.csv.gz`` is read from the folder that the environment variable STABLESSM_DATA names. Without this
    variable, the file is downloaded from the Hugging Face hub and its checksum is verified.

    >>> import os
    >>> from stablessm import tasks
    >>> if "STABLESSM_DATA" in os.environ:
    ...     task = tasks.get("etth1", horizon=96)
    ...     assert task.sizes["test"] == 2880 - 96 + 1 and task.outputs.size == 7 * 96
    """

    def __init__(self, options: ForecastingOptions, name: str = "etth1") -> None:
        self.name, self.options, self.metric = name, options, options.metric
        columns, series = read()
        hours = sum(ROWS.values())
        if len(series) < hours:
            raise ArgumentError(FILE, f"{hours} rows or more", len(series))
        if options.columns != "all":
            series, columns = series[:, [columns.index(options.columns)]], (options.columns,)
        self._slide(series[:hours], columns, columns, ROWS, options.window, options.horizon)


def read() -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the seven ETTh1 channels and their values (hours, 7)."""
    path = sources.find(FILE)
    if path is None:
        path = sources.file_from_hub(*_HUB, FILE)
        if (came := sources.content_digest(path.read_bytes())) != _CONTENT:
            raise ArgumentError("/".join(_HUB), f"SHA-256 {_CONTENT}", came)
    table = csv_file.read(path, _EXPECTED)
    if len(table.header) != 1 + CHANNELS:
        raise ArgumentError(str(path), _EXPECTED, f"{len(table.header)} columns")
    columns = table.header[1:]  # without the date
    return columns, table.complete(columns, FILE)[0]

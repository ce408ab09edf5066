"""Real data: files in a folder that the user names, or else a data set of the Hugging Face hub."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from stablessm._errors import ArgumentError

VARIABLE = "STABLESSM_DATA"


def find(name: str) -> Path | None:
    """The file of that name in the data folder; None if the environment variable STABLESSM_DATA names no folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder) / name
    if not path.is_file():
        raise ArgumentError(VARIABLE, f"a folder with {name}", folder)
    return path


def from_hub(data_set: str, split: str, name: str) -> Any:
    """A split of a data set of the hub, if the package ``datasets`` and a network are there; ``name``: the file that
    would do instead."""
    remedy = f"a folder with {name} (or pip install datasets, and a network)"
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError as error:
        raise ArgumentError(VARIABLE, remedy, "no such variable, and no package datasets") from error
    try:
        return load_dataset(data_set, split=split)
    except Exception as error:  # whatever the library raises when it is offline
        raise ArgumentError(VARIABLE, remedy, f"no such variable, and {data_set} cannot be loaded") from error

"""The committed stages of an experiment, with some of their arrays replaced in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stablessm import record
from stablessm.experiments.frame.stages import PACK, Arrays, Stages

RESULTS = Path(__file__).parents[1] / "results"

Value = Any | Callable[[Mapping[str, Any]], Any]
"""An array, or a function from all arrays of the stage to one."""
Changes = Mapping[str, Mapping[str, Value]]
"""New arrays by the pattern of the stages and the name of the array. Later patterns win."""


def record_folder(id: str) -> Path:
    """Return the folder of the one committed record of an experiment."""
    (path,) = (RESULTS / id).glob("*/record.json")
    return path.parent


class Invented(Stages):
    """The stages of the committed record, changed: arrays of a stage, or fields of a stage that is a curve."""

    def __init__(self, id: str, changes: Changes | None = None) -> None:
        super().__init__(record_folder(id))
        self.changes = changes or {}
        used = {pattern for pattern in self.changes if any(fnmatchcase(name, pattern) for name in self.stages())}
        assert used == set(self.changes), f"no stage of {id} matches {set(self.changes) - used}"

    def __getitem__(self, name: str) -> Arrays:
        arrays = dict(_arrays(self.folder, name))
        for key, value in self._changed(name, arrays).items():
            arrays[key] = np.asarray(value)
        return Arrays(arrays, name, self.command, set())

    def load(self, name: str, kind: Any) -> Any:
        curve = _curve(self.folder, name, kind)
        known = {field.name: getattr(curve, field.name) for field in fields(curve)}
        changed = self._changed(name, known)
        return replace(curve, **changed) if changed else curve

    def _changed(self, name: str, known: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for pattern, values in self.changes.items():
            if fnmatchcase(name, pattern):
                found |= {key: value(known) if callable(value) else value for key, value in values.items()}
        return found


@cache
def _arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    return record.load_arrays(folder / PACK / name, "stage")[1]


@cache
def _curve(folder: Path, name: str, kind: Any) -> Any:
    return kind.load(folder / PACK / name)

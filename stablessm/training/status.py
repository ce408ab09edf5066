"""The status of the training runs in a folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from stablessm import _locks, record
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.training.config import TrainingConfig
from stablessm.training.folder import MARKER, settings_of
from stablessm.training.metrics import losses, read_rows

_DEPTH = 3
"""Number of levels of folders in which runs are searched for."""


@final
@dataclass(frozen=True)
class TrainingStatus:
    """The status of one training run: its state, its last logged step and loss."""

    folder: Path
    state: Literal["running", "finished", "stopped", "diverged", "damaged"]
    """State of the run; ``stopped`` means interrupted, killed or failed (the same command resumes the run)."""
    step: int
    """Last step that was logged."""
    steps: int | None
    """Total number of steps; None for a run of an earlier version."""
    loss: float | None
    """Last training loss that was logged."""


@checked
def trainings(out: str | Path) -> list[TrainingStatus]:
    """Return the status of every training run in the folder ``out`` and in folders up to three levels below it.

    Replicas that are trained together count as one run; until the run has finished, its loss is the loss of replica 0.

    >>> trainings("nowhere")
    []
    """
    out = Path(out)
    markers = [path for depth in range(_DEPTH + 1) for path in out.glob("[!.]*/" * depth + MARKER)]
    folders = {path.parent for path in markers}
    return [_status(folder) for folder in sorted(folders) if folder.parent not in folders]


def _status(folder: Path) -> TrainingStatus:
    try:
        settings = settings_of(folder)
        first = folder / "replica-0"
        seen = losses(read_rows(folder) or (read_rows(first) if first.is_dir() else []))
        step, loss = (int(seen[-1, 0]), float(seen[-1, 1])) if len(seen) else (0, None)
        steps = settings.get("steps")
        state = "running" if _locks.taken(folder.absolute()) else _ended(folder / "record.json", settings["config"])
        return TrainingStatus(folder, state, step, None if steps is None else int(steps), loss)
    except (OSError, ArgumentError) as error:
        warnings.warn(str(error), stacklevel=2)
        return TrainingStatus(folder, "damaged", 0, None, None)


def _ended(path: Path, config: Mapping[str, Any]) -> Literal["finished", "stopped", "diverged"]:
    """Return the state of a run from its record; ``stopped`` if the run was extended after the record was written."""
    if not path.is_file():
        return "stopped"
    with record.reading(path, "the record of a training run"):
        found = record.read_json(path)
        before, now = TrainingConfig.filled(found["config"]), TrainingConfig.filled(config)
        if any(before[name] != value for name, value in now.items()):
            return "stopped"
        return "finished" if found["diverged"] is None else "diverged"

"""Reads the progress of the runs in a folder."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from stablessm import _locks as locks
from stablessm._errors import ArgumentError
from stablessm.experiments.frame.base import is_complete
from stablessm.experiments.frame.stages import JOBS, PACK, Stages
from stablessm.sweeps import notes
from stablessm.sweeps.notes import Notes
from stablessm.sweeps.worker import plan_of


@final
@dataclass(frozen=True)
class RunStatus:
    """The progress of one run: its state, the number of complete stages, and the state of each job."""

    folder: Path
    state: Literal["complete", "running", "failed", "interrupted", "damaged"]
    stages: int
    """Number of stages that are complete."""
    jobs: Mapping[str, Notes]
    """Jobs by name; empty if the run is complete or is not computed as a sweep."""

    @property
    def count(self) -> Counter[str]:
        """Return the number of jobs in each state."""
        return Counter(note.state for note in self.jobs.values())


def runs(out: Path) -> list[RunStatus]:
    """Return the progress of every run folder ``out/ID/SIZE``, sorted by path.

    >>> runs(Path("nowhere"))
    []
    """
    folders = sorted({path.parent for name in ("config.json", PACK) for path in out.glob(f"[!.]*/[!.]*/{name}")})
    found = []
    for folder in folders:
        try:
            if not any(folder.glob("*.safetensors")):  # a folder of a trained model
                found.append(_status(folder))
        except (OSError, ArgumentError) as error:
            warnings.warn(str(error), stacklevel=2)
            found.append(RunStatus(folder, "damaged", 0, {}))
    return found


def _status(folder: Path) -> RunStatus:
    stages = len(Stages(folder).stages())
    if is_complete(folder):
        return RunStatus(folder, "complete", stages, {})
    jobs = {name: notes.read(folder / JOBS / name) for name in plan_of(folder)[1]}
    found = {note.state for note in jobs.values()}
    if locks.taken(folder) or "running" in found:
        return RunStatus(folder, "running", stages, jobs)
    return RunStatus(folder, "failed" if "failed" in found else "interrupted", stages, jobs)

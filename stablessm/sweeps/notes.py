"""Reads and writes the file that contains the state of a job. The worker of the job writes this file; any process may
read it.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from stablessm import _locks as locks
from stablessm import record

State: TypeAlias = Literal["left", "running", "done", "failed"]
FILE = "state.json"
"""Name of the file in the folder of a job."""


@final
@dataclass(frozen=True)
class Notes:
    """The notes on one job: its state, number of attempts, worker, time, and error message if the job failed."""

    state: State = "left"
    attempts: int = 0
    """Number of times that a worker started the job."""
    worker: str = ""
    """Machine and process of the worker, or of the last worker."""
    seconds: float = 0.0
    """Seconds that the last worker took."""
    error: str = ""
    traceback: str = ""


def read(folder: Path) -> Notes:
    """Return the state of the job whose files are in ``folder``. The state is ``left`` (to be computed) if the worker
    of the job died.

    >>> read(Path("nowhere"))
    Notes(state='left', attempts=0, worker='', seconds=0.0, error='', traceback='')
    """

    def checked(found: dict[str, Any]) -> Notes:
        notes = Notes(**found)
        if any(type(value) is not type(getattr(Notes, name)) for name, value in asdict(notes).items()):
            raise TypeError("values of other types")
        return notes

    notes = record.read_side(folder / FILE, checked, Notes(), "The job is left to be done")
    if notes.state == "running" and not locks.running(folder):
        return replace(notes, state="left")
    return notes


def begin(folder: Path) -> float:
    """Record that this worker has started the job; return the start time by ``time.perf_counter``."""
    worker = f"{platform.node()}, process {os.getpid()}"
    _write(folder, Notes("running", read(folder).attempts + 1, worker))
    return time.perf_counter()


def end(folder: Path, began: float, error: str = "", traceback: str = "") -> None:
    """Record that the job is done or, if ``error`` is not empty, that the job has failed with this error. ``began`` is
    the start time that :func:`begin` returned.
    """
    seconds = round(time.perf_counter() - began, 3)
    state: State = "failed" if error else "done"
    _write(folder, replace(read(folder), state=state, seconds=seconds, error=error, traceback=traceback))


def again(folder: Path) -> None:
    """Set the state of a failed job to ``left``, so that it is computed again."""
    notes = read(folder)
    if notes.state == "failed":
        _write(folder, replace(notes, state="left", error="", traceback=""))


def _write(folder: Path, notes: Notes) -> None:
    record.write_json(folder / FILE, asdict(notes))

"""Computes one job on a worker: in the run folder or, if the worker cannot access this folder, in a temporary folder
whose files are sent back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from stablessm import _locks as locks
from stablessm import record
from stablessm._optional import import_failure
from stablessm.experiments.frame.base import Plan
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import JOBS
from stablessm.sweeps import notes
from stablessm.sweeps.job import Job

SWEEP = "sweep.json"
"""Name of the file that lists the jobs, in the folder of the jobs."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@final
@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: the error message, empty if the job succeeded, and the files to send back."""

    error: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of files by their path in the run folder, if the worker has no access to that folder."""


def threads(cpus: int) -> dict[str, str]:
    """Return the environment variables that limit a worker to this number of CPU cores.

    >>> threads(2)["OMP_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(_THREADS, str(cpus))


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside the ``with`` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def compute(job: Job, cpus: int) -> Outcome:
    """Compute a job on ``cpus`` cores, unless the job is done already. If the experiment raises an error, record the
    error and return it in the outcome.
    """
    if "torch" in sys.modules:  # if torch is not imported yet, it reads the environment
        sys.modules["torch"].set_num_threads(cpus)
    plan = job.plan()
    if _sees(plan, job):
        return Outcome(_compute(job, plan))
    with tempfile.TemporaryDirectory() as scratch:
        plan = job.plan(scratch)
        error = _compute(job, plan)
        files = {path.relative_to(plan.folder).as_posix(): path for path in plan.folder.rglob("*") if path.is_file()}
        return Outcome(error, {name: path.read_bytes() for name, path in files.items() if path.name != locks.JOB})


def told(error: Exception) -> str:
    """Format an error as one line: its type and its message.

    >>> told(ValueError("no"))
    'ValueError: no'
    """
    return import_failure(error) or f"{type(error).__name__}: {error}"


def _compute(job: Job, plan: Plan) -> str:
    run = Run(plan.folder, asdict(plan.config), progress=False, job=job.name)
    folder = run.notes(job.name)
    with locks.job_lock(folder):
        if notes.read(folder).state == "done":
            return ""
        began = notes.begin(folder)
        try:
            plan.jobs()[job.name](run)
        except Exception as error:
            said = told(error)
            notes.end(folder, began, said, traceback.format_exc())
            return said
        notes.end(folder, began)
        return ""


def _sees(plan: Plan, job: Job) -> bool:
    return job.sweep == plan_of(plan.folder)[0]


def plan_of(folder: Path) -> tuple[str, list[str]]:
    """Return the name of the sweep that a run folder belongs to, and the names of the jobs of the run. If the run
    belongs to no sweep, both are empty.
    """
    path = folder / JOBS / SWEEP

    def names(found: dict[str, Any]) -> tuple[str, list[str]]:
        return str(found["sweep"]), [record.inside(path.with_name(name), folder).name for name in found["jobs"]]

    nothing: tuple[str, list[str]] = ("", [])
    return record.read_side(path, names, nothing, "The sweep gets a new name")

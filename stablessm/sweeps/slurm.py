"""An engine that submits jobs with submitit: to a Slurm cluster, or to processes of this machine for a test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from stablessm import record
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm._optional import require
from stablessm.experiments.frame.stages import JOBS
from stablessm.sweeps import notes, worker
from stablessm.sweeps.engine import Retrying, Workers
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

_POLL = {"slurm": 2.0, "local": 0.1}
"""Seconds between two checks of the queue."""
_GRACE = {"slurm": 30.0, "local": 0.0}
"""Seconds within which a file that another machine wrote must be visible here."""

Executor: TypeAlias = Literal["slurm", "local"]


@final
@checked
@dataclass(frozen=True)
class Slurm(Retrying):
    """An engine that submits each job of a sweep to Slurm. If a Slurm job ends without a result, the job is submitted
    again, up to ``retries`` times.

    On a Slurm cluster, jobs stay in the queue when the sweep is interrupted, and a resumed sweep waits for them.
    """

    executor: Executor = "slurm"
    minutes: Size = 24 * 60
    """Time limit of a job in minutes. A job that Slurm stops at the limit is queued again and resumes."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of sbatch, such as partition or account."""

    def __post_init__(self) -> None:
        require("submitit", "--on slurm")

    @contextmanager
    def _workers(self, placed: Mapping[Any, Job], count: int) -> Iterator[Workers]:
        submitit = require("submitit", "--on slurm")

        def ended() -> list[tuple[Any, Outcome | str]]:
            time.sleep(_POLL[self.executor])
            done = [(handle, job) for handle, job in placed.items() if handle.done()]
            return [(handle, self._outcome(job) or f"it ended {{}} times without a result: {_last(handle)}")
                    for handle, job in done]  # fmt: skip

        try:
            yield lambda job: self._found(submitit, job) or self._submitted(submitit, job), ended
        finally:
            if self.executor == "local":
                for handle in placed:
                    handle.cancel()

    def _submitted(self, submitit: Any, job: Job) -> Any:
        folder = _folder(job)
        try:
            executor = submitit.AutoExecutor(folder / "submitit", cluster=self.executor)
            executor.update_parameters(**self.parameters(job))
        except (RuntimeError, ValueError, NameError) as error:
            raise ArgumentError("--on slurm", "a Slurm cluster and options that sbatch knows", str(error)) from error
        with worker.environment(worker.threads(self.resources.cpus)):
            handle = executor.submit(worker.compute, job, self.resources.cpus)
        record.write_json(folder / "queued.json", {"executor": self.executor, "id": handle.job_id})
        return handle

    def parameters(self, job: Job) -> dict[str, Any]:
        """Return the parameters of a Slurm job for submitit: name, time limit, resources and further options."""
        needs: dict[str, Any] = {"cpus_per_task": self.resources.cpus}
        if self.resources.gpus:
            needs["gpus_per_node"] = self.resources.gpus
        if self.resources.memory is not None:
            needs["mem_gb"] = self.resources.memory / 1e9
        others = {f"slurm_{name}": text for name, text in self.options.items()}
        return {"name": job.id.replace("/", "-"), "timeout_min": self.minutes, **needs, **others}

    def _found(self, submitit: Any, job: Job) -> Any | None:
        """Return the Slurm job that an earlier, interrupted sweep submitted for ``job``, if this Slurm job is still
        waiting or running. Otherwise return None.
        """
        folder = _folder(job)
        try:
            queued = str(record.read_json(folder / "queued.json").get("id", ""))
        except (OSError, ArgumentError):
            return None
        if self.executor == "local" or not queued:
            return None
        handle = submitit.SlurmJob(folder / "submitit", queued)
        return None if handle.done(force_check=True) else handle

    def _outcome(self, job: Job) -> Outcome | None:
        """Return the outcome that the worker recorded, or None if the worker did not finish."""
        deadline = time.monotonic() + _GRACE[self.executor]
        while True:
            found = notes.read(_folder(job))
            if found.state in ("done", "failed"):
                return Outcome(found.error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(1.0)


def _folder(job: Job) -> Path:
    return job.plan().folder / JOBS / job.name


def _last(handle: Any) -> str:
    """Return the last line of the log of a Slurm job, such as its error message."""
    lines = (handle.stderr() or handle.stdout() or "").strip().splitlines()
    return lines[-1] if lines else "no log"

"""A sweep: an engine computes the jobs of experiments, and the results are combined into runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from stablessm import _progress, record
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Plan, Size, is_complete
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import JOBS
from stablessm.sweeps import notes, worker
from stablessm.sweeps.engine import Engine
from stablessm.sweeps.job import Job, expand
from stablessm.sweeps.worker import SWEEP


@final
@dataclass(frozen=True)
class Swept:
    """The result of one experiment of a sweep: its run folder, and the errors of the jobs that failed."""

    folder: Path
    cached: bool = False
    """True if the run was already complete."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Errors by the ids of jobs, or by the id of the run if its jobs could not be combined. Completed jobs are kept:
    the same sweep, started again, computes only the failed ones."""


@dataclass
class _Part:
    """One experiment of a running sweep, with the jobs that are not yet done."""

    plan: Plan
    run: Run
    jobs: list[Job]
    left: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def end(self) -> Swept:
        """Combine the finished jobs into a complete run, and return the result. Errors are part of the result instead
        of being raised, so that the other experiments of the sweep continue.
        """
        if not self.failures:
            found = {job.name: notes.read(self.run.notes(job.name)) for job in self.jobs}
            facts = {name: {"attempts": note.attempts, "seconds": note.seconds} for name, note in found.items()}
            record.write_json(self.plan.folder / SWEEP, {"jobs": facts})
            try:
                self.plan.finish(self.run)
            except Exception as error:
                self.failures[self.plan.id] = worker.told(error)
        return Swept(self.plan.folder, failures=self.failures)


def sweep(
    experiments: Sequence[str],
    size: Size,
    out: Path,
    engine: Engine,
    *,
    changes: Mapping[str, str] | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> Iterator[Swept]:
    """Compute experiments as one sweep, and yield the outcome of each experiment as soon as its last job is done.

    Every job is computed once: completed jobs are kept, an interrupted job resumes from its last checkpoint, and two
    workers never compute the same job. A job that fails does not stop the others.

    Each run has the folder ``out/ID/SIZE``. ``changes`` maps the names of settings to new values, given as text. With
    ``fresh``, earlier runs in these folders are first deleted.
    """
    given = tuple((changes or {}).items())
    plans = {id: Plan.of(catalog.get(id), size, out, changes) for id in dict.fromkeys(experiments)}
    with ExitStack() as stack:
        parts: dict[str, _Part] = {}
        for id, plan in plans.items():
            run = stack.enter_context(plan.begun(fresh=fresh, progress=False))
            if is_complete(plan.folder):
                yield Swept(plan.folder, cached=True)
                continue
            parts[id] = part = _Part(plan, run, expand(id, size, out, given, _begin(plan)))
            part.left = {job.name for job in part.jobs if notes.read(run.notes(job.name)).state != "done"}
            if not part.left:
                yield part.end()
        jobs = [job for part in parts.values() for job in part.jobs if job.name in part.left]
        for job in jobs:
            notes.again(parts[job.experiment].run.notes(job.name))
        total = sum(len(part.jobs) for part in parts.values())
        with _progress.bar(progress, total=total, initial=total - len(jobs), desc="sweep", unit="job") as bar:
            for job, outcome in engine.run(jobs) if jobs else ():
                part = parts[job.experiment]
                _receive(part.plan.folder, outcome.files)
                part.left.discard(job.name)
                if outcome.error:
                    part.failures[job.id] = outcome.error
                bar.update()
                if not part.left:
                    yield part.end()


def _begin(plan: Plan) -> str:
    """Write the names of the jobs to the run folder, and return the name of the sweep to which the run folder
    belongs.
    """
    name = worker.plan_of(plan.folder)[0] or uuid.uuid4().hex
    record.write_json(plan.folder / JOBS / SWEEP, {"sweep": name, "jobs": list(plan.jobs())})
    return name


def _receive(folder: Path, files: Mapping[str, bytes]) -> None:
    """Store in the run folder the files of a worker that has no access to this folder. ``files`` maps paths inside the
    folder to the contents of the files.
    """
    for name in sorted(files, key=lambda name: Path(name).name == notes.FILE):  # last: it marks the job as done
        with record.atomic(folder / name) as temporary:
            temporary.write_bytes(files[name])

"""``stablessm status``: shows the progress of experiments, sweeps and training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from stablessm._errors import printable
from stablessm.cli import tables
from stablessm.cli.options import RUNS, option


def status(
    out: Path = RUNS, all: bool = option(False, "Also show complete experiments and training runs.")
) -> dict[str, Any]:
    """Show the progress of experiments, sweeps and training runs.

    The first table has one row per run of an experiment, with the number of jobs that are done, running, failed and
    left (to be computed). The second table has one row per training run, with its last logged loss and its state:
    running, finished, stopped (the same command resumes the run) or diverged.

    Examples:

      stablessm status
      stablessm status --out results --all
    """
    return {"runs": _show_runs(out, complete_too=all), "trainings": _show_trainings(out, finished_too=all)}


def _show_runs(out: Path, *, complete_too: bool) -> list[dict[str, Any]]:
    from stablessm.sweeps import runs

    found = runs(out)
    shown = [run for run in found if complete_too or run.state != "complete"]
    rows = []
    for run in shown:
        name, count = run.folder.relative_to(out).as_posix(), run.count
        jobs = [str(len(run.jobs)), *(str(count[state]) for state in ("done", "running", "failed", "left"))]
        rows.append((name, run.state, run.stages, *(jobs if run.jobs else [""] * 5)))
    if shown:
        tables.show(("run", "state", "stages", "jobs", "done", "running", "failed", "left"), rows)
    for run in shown:
        for job, note in run.jobs.items():
            if note.state in ("failed", "running"):
                where = f"{run.folder.relative_to(out).as_posix()}/{job}"
                said = f"failed: {note.error}" if note.state == "failed" else f"running on {note.worker}"
                again = f" (attempt {note.attempts})" if note.attempts > 1 else ""
                typer.echo(printable(f"{where} {said}{again}"))
    complete = sum(run.state == "complete" for run in found)
    typer.echo(f"complete: {complete} of {len(found)} experiment runs in {out}")
    return [
        {**vars(run), "jobs": {job: vars(told) for job, told in run.jobs.items()}, "count": run.count} for run in found
    ]


def _show_trainings(out: Path, *, finished_too: bool) -> list[dict[str, Any]]:
    from stablessm.training.status import trainings

    found = trainings(out)
    shown = [each for each in found if finished_too or each.state != "finished"]
    rows = []
    for each in shown:
        total = "?" if each.steps is None else each.steps
        loss = "" if each.loss is None else f"{each.loss:.4g}"
        rows.append((each.folder.relative_to(out).as_posix(), each.state, f"{each.step} of {total}", loss))
    if shown:
        tables.show(("training", "state", "step", "loss"), rows)
    if found:
        finished = sum(each.state == "finished" for each in found)
        typer.echo(f"finished: {finished} of {len(found)} training runs in {out}")
    return [vars(each) for each in found]

"""``stablessm status``: the progress of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import printable
from stablessm.cli import tables


def status(
    out: Annotated[Path, typer.Option(help="Folder that holds the run folders.")] = Path("runs"),
    all: Annotated[bool, typer.Option("--all", help="Show complete runs too.")] = False,
) -> list[dict[str, Any]]:
    """Show the progress of runs and sweeps.

    Examples:

      stablessm status
      stablessm status --out results --all
    """
    from stablessm.sweeps import runs

    found = runs(out)
    shown = [run for run in found if all or run.state != "complete"]
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
    typer.echo(f"complete: {complete} of {len(found)} runs in {out}")
    return [
        {**vars(run), "jobs": {job: vars(told) for job, told in run.jobs.items()}, "count": run.count} for run in found
    ]

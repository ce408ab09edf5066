"""``stablessm run`` and ``stablessm list``: the experiments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm import record
from stablessm._errors import ArgumentError, MissingPackageError, printable
from stablessm.cli import tables
from stablessm.cli.engine_options import EngineOptions
from stablessm.cli.options import RESUME, Runs, grouped, pairs, refusing


@grouped
def run(
    ids: Annotated[list[str], typer.Argument(help="Experiments, or 'all', or module:NAME of your own.")],
    size: Annotated[str, typer.Option(help="smoke (seconds) or paper (the published size).")] = "smoke",
    out: Runs = Path("runs"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: another setting, by name.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of going on.")] = False,
    *,
    engine: EngineOptions,
) -> None:
    """Run experiments; a run that was interrupted goes on, one that is complete is not computed again.

    With --jobs or --on, experiments are split into jobs that run side by side; stablessm status says how far they are.

    Examples:

      stablessm run ia-fig1

      stablessm run all --size paper --out results

      stablessm run ia-fig5 --set words=fine,awful

      stablessm run st-fig1 --size paper --jobs 4 --cpus 2

      stablessm run st-fig1 st-table5 --size paper --on ray --address auto --gpus 1

      stablessm run st-fig1 --size paper --on slurm --slurm partition=gpu --gpus 1 --memory 16GB --minutes 240
    """
    from stablessm.experiments import catalogue
    from stablessm.sweeps import sweep

    failed = False
    sys.path.insert(0, "")  # as python -m does, so that a module of the current folder is found
    with refusing(interrupted=RESUME):
        changes, names = pairs("--set", settings), list(catalogue.IDS) if ids == ["all"] else ids
        chosen = engine.engine()
        swept: Any = _one_by_one if chosen is None else partial(sweep, engine=chosen)
        for result in swept(names, size, out, changes=changes, fresh=fresh):
            for id, error in result.failures.items():
                typer.secho(printable(f"failed: {id}: {error}"), fg="red")
            if not result.failures:
                show_claims(result.folder, result.cached)
                typer.echo(f"written: {result.folder}")
            failed = failed or bool(result.failures)
    if failed:
        typer.echo("the same command computes again what failed, and nothing else")
        raise typer.Exit(1)


def _one_by_one(ids: list[str], size: Any, out: Path, *, changes: dict[str, str], fresh: bool) -> Iterator[Any]:
    """In this process. Of several experiments, those that lack a package do not stop the others."""
    from stablessm.experiments import catalogue
    from stablessm.experiments.frame.base import execute
    from stablessm.sweeps import Swept

    for id in ids:
        try:
            yield Swept(*execute(catalogue.get(id), size, out, changes=changes, fresh=fresh))
        except MissingPackageError as error:
            if len(ids) == 1:
                raise
            yield Swept(out / id / size, failures={id: str(error)})


def list_experiments(out: Runs = Path("runs")) -> None:
    """Show the experiments: id, question, how long they take, and the last verdict.

    Example: stablessm list --out results
    """
    from stablessm.experiments import catalogue

    rows = []
    for id in catalogue.ids():
        experiment = catalogue.get(id)
        cost = " / ".join(_duration(experiment.minutes[size]) for size in ("smoke", "paper"))
        rows.append((id, experiment.source, experiment.question, cost, _last_verdict(out / id)))
    tables.show(("id", "source", "question", "smoke / paper", "last verdict"), rows)


def show_claims(folder: Path, cached: bool) -> None:
    """Print the claims of a run as a table."""
    path = folder / "record.json"
    with record.reading(path, "the record of an experiment, or --fresh to start again"):
        found = record.read_json(path)
        when = "from an earlier run" if cached else f"{found['wall_time_s']:.0f} s"
        title = f"{found['id']} ({found['source']}, size {found['size']}, {when})"
        rows = [[claim[key] for key in ("statement", "paper", "ours", "verdict")] for claim in found["claims"]]
    tables.show(("claim", "paper", "ours", "verdict"), rows, title=title)


def _duration(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


def _last_verdict(folder: Path) -> str:
    for size in ("paper", "smoke"):
        path = folder / size / "record.json"
        if path.exists():
            try:
                with record.reading(path, "the record of an experiment"):
                    verdicts = {str(claim["verdict"]) for claim in record.read_json(path)["claims"]}
            except (OSError, ArgumentError):
                return f"unreadable ({size})"
            return f"{', '.join(sorted(verdicts))} ({size})"
    return "not run"

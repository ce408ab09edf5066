"""``stablessm run`` and ``stablessm list``: the experiments."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option(help="Folder for run folders.")]


def run(
    ids: Annotated[list[str], typer.Argument(help="Experiments, or 'all', or module:NAME of your own.")],
    size: Annotated[str, typer.Option(help="smoke (seconds) or paper (the published size).")] = "smoke",
    out: Out = Path("runs"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: another setting, by name.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of going on.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Jobs at once; without it one run after the other, or all there is room for.")
    ] = None,
    on: Annotated[str, typer.Option(help="Where jobs run: processes (of this machine), ray or slurm.")] = "processes",
    cpus: Annotated[int | None, typer.Option(help="Cores for each job; 1 where jobs run side by side.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs for each job, of which it sees no others.")] = 0,
    memory: Annotated[str | None, typer.Option(help="For each job, such as 4GB; with --on ray or slurm.")] = None,
    retries: Annotated[int, typer.Option(help="How often a job whose worker is lost is given to another.")] = 2,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster, with --on ray.")] = None,
    executor: Annotated[
        str | None, typer.Option(help="With --on slurm: slurm (the default), or local to try it here.")
    ] = None,
    minutes: Annotated[int | None, typer.Option(help="With --on slurm: what a job may take; 1440 by default.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option("--slurm", help="KEY=VALUE for sbatch, such as partition=gpu; repeatable.")
    ] = None,
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
    from stablessm import ArgumentError
    from stablessm.cli.engine_options import EngineOptions, chosen_engine
    from stablessm.cli.train import pairs
    from stablessm.experiments import catalogue
    from stablessm.sweeps import sweep

    failed = False
    sys.path.insert(0, "")  # as python -m does, so that a module of the current folder is found
    try:
        changes, names = pairs("--set", settings), list(catalogue.IDS) if ids == ["all"] else ids
        slurm = pairs("--slurm", sbatch)
        engine = chosen_engine(EngineOptions(on, jobs, cpus, gpus, memory, retries, address, executor, minutes, slurm))
        swept: Any = _one_by_one if engine is None else partial(sweep, engine=engine)
        for result in swept(names, size, out, changes=changes, fresh=fresh):
            if result.failures:
                failed = True
                for id, error in result.failures.items():
                    typer.secho(f"failed: {id}: {error}", fg="red")
                continue
            show_claims(result.folder, result.cached)
            typer.echo(f"written: {result.folder}")
    except ArgumentError as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to resume")
        raise typer.Exit(130) from None
    if failed:
        typer.echo("the same command computes again what failed, and nothing else")
        raise typer.Exit(1)


def _one_by_one(ids: list[str], size: Any, out: Path, *, changes: dict[str, str], fresh: bool) -> Iterator[Any]:
    """In this process. Of several experiments, those that lack a package do not stop the others."""
    from stablessm import MissingPackageError
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


def list_experiments(out: Out = Path("runs")) -> None:
    """Show the experiments: id, question, how long they take, and the last verdict.

    Example: stablessm list --out results
    """
    from stablessm.cli import tables
    from stablessm.experiments import catalogue

    rows = []
    for id in catalogue.ids():
        experiment = catalogue.get(id)
        cost = " / ".join(_duration(experiment.minutes[size]) for size in ("smoke", "paper"))
        rows.append((id, experiment.source, experiment.question, cost, _last_verdict(out / id)))
    tables.show(("id", "source", "question", "smoke / paper", "last verdict"), rows)


def show_claims(folder: Path, cached: bool) -> None:
    """Print the claims of a run as a table."""
    from stablessm.cli import tables

    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    when = "from an earlier run" if cached else f"{record['wall_time_s']:.0f} s"
    title = f"{record['id']} ({record['source']}, size {record['size']}, {when})"
    rows = ([claim[key] for key in ("statement", "paper", "ours", "verdict")] for claim in record["claims"])
    tables.show(("claim", "paper", "ours", "verdict"), rows, title=title)


def _duration(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


def _last_verdict(folder: Path) -> str:
    for size in ("paper", "smoke"):
        path = folder / size / "record.json"
        if path.exists():
            try:
                verdicts = [claim["verdict"] for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]]
            except (OSError, ValueError, KeyError, TypeError):
                return f"unreadable ({size})"
            return f"{', '.join(sorted(set(verdicts)))} ({size})"
    return "not run"

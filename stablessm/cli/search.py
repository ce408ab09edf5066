"""``stablessm search``: which settings are best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import ArgumentError
from stablessm.cli.options import RESUME, pairs, refusing


def search(
    name: Annotated[str, typer.Argument(help="A task to train on, or an experiment.")],
    over: Annotated[
        list[str], typer.Option(help="NAME=log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or choice:A,B; repeatable.")
    ],
    trials: Annotated[int, typer.Option(help="In all, with those that are in the storage.")] = 20,
    storage: Annotated[
        str | None, typer.Option(help="A database, such as sqlite:///search.db; by default in the folder.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: the same in every trial.")] = None,
    model: Annotated[str, typer.Option(help="Of a task: the preset to train.")] = "small",
    size: Annotated[str, typer.Option(help="Of an experiment: smoke or paper.")] = "smoke",
    objective: Annotated[
        str | None, typer.Option(help="Of an experiment: STAGE/ARRAY:HOW, with HOW mean, min, max or last.")
    ] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Of an experiment: larger is better.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is proposed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/search/NAME by default.")] = None,
) -> None:
    """Search settings with Optuna; killed, the same command goes on, in the middle of a trial.

    Of a task, settings are those of stablessm train (lr, recurrent_lr, batch_size, …), model.NAME and task.NAME, and
    the score is that of the validation examples. Of an experiment they are those of run --set. The same command on
    several machines, with one --storage and one --out, shares the work.

    Examples:

      stablessm search recall --over lr=log:1e-4:1e-1 --over model.map=choice:best,exp --set steps=500 --trials 20

      stablessm search mnist --model paper-images --over lr=log:1e-3:1e-1 --storage sqlite:///mnist.db

      stablessm search st-fig1 --over training.lr=log:1e-3:1e-1 --objective training-best-20/losses:last
    """
    from stablessm import sweeps
    from stablessm.sweeps.search import told

    with refusing(interrupted=RESUME):
        ranges = [sweeps.Range.read("--over", text) for text in over]
        aim = _objective(name, model, size, objective, maximize, pairs("--set", settings))
        folder = out or Path("runs") / "search" / name.replace(":", "-")
        found = sweeps.search(aim, ranges, folder, trials=trials, storage=storage, seed=seed)
    if found is None:
        typer.echo(f"no trial had a score: each diverged, or its objective is no number; see {folder / 'trials'}")
        raise typer.Exit(1)
    typer.echo(f"best of {found.trials} trials: {found.value:.6g} with {told(found.settings)}, in {found.folder}")
    typer.echo(f"written: {folder / 'search.json'}")


def _objective(
    name: str, model: str, size: Any, objective: str | None, maximize: bool, settings: dict[str, str]
) -> Any:
    from stablessm import sweeps, tasks
    from stablessm.experiments import catalogue

    if name in tasks.TASKS:
        if objective is not None or maximize:
            raise ArgumentError("--objective, --maximize", "an experiment beside it; a task has its metric", name)
        return sweeps.OfTask(name, model, settings)
    if name not in catalogue.ids() and ":" not in name:
        raise ArgumentError("NAME", f"a task ({', '.join(tasks.TASKS)}) or an experiment (stablessm list)", repr(name))
    if objective is None:
        raise ArgumentError("--objective", "STAGE/ARRAY:HOW, the number to make better", "none")
    return sweeps.OfExperiment(name, objective, size, "maximize" if maximize else "minimize", settings)

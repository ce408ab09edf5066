"""``stablessm search``: searches for the best settings of a task or an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from stablessm._errors import ArgumentError, unknown_name
from stablessm.cli.options import RESUME, SIZES, argument, option, pairs, refusing
from stablessm.cli.output import Unsuccessful, note


def search(
    name: str = argument(..., "Name of a task (stablessm train --list), or id of an experiment (stablessm list)."),
    over: list[str] = option(
        ..., "Setting to vary and its range: NAME=log:LOW:HIGH, float:…, int:… or choice:A,B; repeatable."
    ),
    trials: int = option(20, "Total number of trials, including those already in the storage."),
    storage: str | None = option(None, "Database of trials, such as sqlite:///a.db (default: in the output folder)."),
    settings: list[str] | None = option(
        None, "Setting that is the same in every trial, as KEY=VALUE; repeatable.", "--set"
    ),
    model: str = option("small", "Model preset to train on a task; ignored for an experiment."),
    size: str = option("smoke", "Size of the experiment, such as smoke; ignored for a task.", words=SIZES),
    objective: str | None = option(
        None, "Number to optimize for an experiment: STAGE/ARRAY:HOW (HOW: mean, min, max or last)."
    ),
    maximize: bool = option(False, "Maximize the --objective instead of minimizing it."),
    seed: int = option(0, "Seed of the random choice of settings.", min=0),
    out: Path | None = option(None, "Output folder (default: a folder in runs/search)."),
) -> dict[str, Any]:
    """Search for the best settings with Optuna.

    The same command resumes an interrupted search. For a task, the settings are the options of stablessm train (lr,
    recurrent_lr, batch_size, …), model.NAME and task.NAME; the score is computed on the validation examples. For an
    experiment, the settings are the keys of stablessm run --set. To share a search among several machines, run the same
    command on each of them with the same --storage and --out.

    Examples:

      stablessm search recall --over lr=log:1e-4:1e-1 --set steps=500
      stablessm search recall --over model.map=choice:best,exp --trials 20
      stablessm search mnist --model paper-images \\
          --over lr=log:1e-3:1e-1 --storage sqlite:///mnist.db
      stablessm search st-fig1 --over training.lr=log:1e-3:1e-1 \\
          --objective training-best-20/losses:last
    """
    from stablessm import sweeps
    from stablessm.sweeps.search import told

    with refusing(interrupted=RESUME):
        ranges = [sweeps.Range.read("--over", text) for text in over]
        aim = _objective(name, model, size, objective, maximize, pairs("--set", settings))
        folder = out or Path("runs") / "search" / name.replace(":", "-")
        found = sweeps.search(aim, ranges, folder, trials=trials, storage=storage, seed=seed)
    if found is None:
        typer.echo(f"no trial has a score: all diverged, or had no number as objective; see {folder / 'trials'}")
        raise Unsuccessful({"folder": folder, "trials": trials, "best": None})
    typer.echo(f"best of {found.trials} trials: {found.value:.6g} with {told(found.settings)}, in {found.folder}")
    note(f"written: {folder / 'search.json'}")
    return {"folder": folder, "trials": found.trials, "best": vars(found)}


def _objective(
    name: str, model: str, size: Any, objective: str | None, maximize: bool, settings: dict[str, str]
) -> Any:
    from stablessm import sweeps, tasks
    from stablessm.experiments import catalog

    if name in tasks.TASKS:
        if objective is not None or maximize:
            raise ArgumentError("--objective, --maximize", "an experiment; a task has a metric of its own", name)
        return sweeps.OfTask(name, model, settings)
    if name not in catalog.ids() and ":" not in name:
        expected = f"a task ({', '.join(tasks.TASKS)}) or an experiment (stablessm list)"
        raise unknown_name("NAME", [*tasks.TASKS, *catalog.ids()], name, expected)
    if objective is None:
        raise ArgumentError("--objective", "STAGE/ARRAY:HOW, the number to optimize", "none")
    return sweeps.OfExperiment(name, objective, size, "maximize" if maximize else "minimize", settings)

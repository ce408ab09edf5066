"""``stablessm eval``: the score of a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    folder: Annotated[Path, typer.Argument(help="What stablessm train wrote.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a trained model on a split of the task it was trained on.

    Examples:

      stablessm eval runs/mnist

      stablessm eval runs/mnist --split valid --json
    """
    from stablessm._errors import ArgumentError

    try:
        scores = _scores(folder, split, batch_size, device)
    except ArgumentError as error:
        typer.secho(f"cannot evaluate {folder}: {error}", fg="red", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(scores))
        return
    for name, value in scores.items():
        typer.echo(f"{name:<9} {f'{value:.6g}' if isinstance(value, float) else value}")


def _scores(folder: Path, split: Any, batch_size: int, device: str) -> dict[str, Any]:
    import stablessm
    from stablessm import tasks, training
    from stablessm._errors import ArgumentError
    from stablessm.training.settings import require_same

    before = training.settings_of(folder)
    if "task" not in before["origin"]:
        raise ArgumentError("FOLDER", "one that stablessm train wrote", f"{folder}, trained from Python")
    name = before["origin"]["task"]
    task = tasks.get(name, **tasks.read_options(name, before["origin"]["options"]))
    require_same("task", "the data it was trained on", before["task"], task.describe())
    model = stablessm.load(folder / "model").to(training.TrainingConfig(device=device).chosen_device())
    scores = training.evaluate(model, task, split, batch_size)
    return {"task": name, "split": split, **scores, "chance": task.chance}

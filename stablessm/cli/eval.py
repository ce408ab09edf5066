"""``stablessm eval``: scores a trained model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from stablessm._errors import ArgumentError, printable
from stablessm.cli.options import DEVICE, argument, option, pairs, refusing
from stablessm.cli.output import note
from stablessm.cli.text_scores import columns, text_scores


def evaluate(
    folder: Path = argument(..., "Run folder that stablessm train wrote."),
    split: str = option("test", "Split to score: train, valid or test.", words=("train", "valid", "test")),
    batch_size: int | None = option(None, "Batch size (default: as in training).", min=1),
    device: str = DEVICE,
    option: list[str] | None = option(
        None, "Task option to change, such as text=other.txt; repeatable.", "--option", "-o"
    ),
) -> dict[str, Any]:
    """Score a trained model.

    The model is scored on a split of the task it was trained on, or of the same task with other data. Other data are
    standardized by the scale of the training data, and their labels get the numbers of the training labels.

    A forecast is also scored in the units of the data: root mean square and mean absolute error of each target. The row
    "chance" scores the best constant prediction, and the row "naive" scores a repetition of the last row of each
    window. A remark is printed if the model is not better than both of these on the test split.

    A language model has two columns of perplexities per token, per word (between white space) and per byte. For
    "carried", the state is carried from the start to the end of every document; for "windows", every window starts
    without a state, as in training without -o carry=true. A warning is printed if "carried" is more than 2 % higher
    than "windows".

    Examples:

      stablessm eval runs/mnist
      stablessm eval runs/mnist --split valid --json
      stablessm eval runs/wikifa -o text=wikitext2
    """
    with refusing(cannot=f"evaluate {folder}"):
        scores = _scores(folder, split, batch_size, device, pairs("--option", option))
    for text in scores.get("notes", ()):
        note(text, err=True)
    typer.echo("\n".join(_lines(scores)))
    return scores


def _scores(folder: Path, split: Any, batch_size: int | None, device: str, changes: dict[str, str]) -> dict[str, Any]:
    import stablessm
    from stablessm import record, tasks, training
    from stablessm.tasks.text import LanguageModeling
    from stablessm.tasks.windows import WindowTask
    from stablessm.training.forecast import unit_scores
    from stablessm.training.settings import task_of, task_options

    before = training.settings_of(folder)
    if "task" not in before["origin"]:
        raise ArgumentError("FOLDER", "a folder that stablessm train wrote", f"{folder}, a training run from Python")
    with record.reading(folder / "training.json", "the settings of a training run", arguments=False):
        name, options = task_options(before["origin"])
        batch_size, autocast = batch_size or int(before["config"]["batch_size"]), bool(before["config"]["autocast"])
        if changes:
            beside = _options_for_another_text(folder, options, changes) if name == "lm" else options
            task = tasks.get(name, **tasks.read_options(name, {**beside, **changes})).as_trained(before["task"])
        else:
            task = task_of(before)
    model = stablessm.load(folder / "model").to(training.TrainingConfig(device=device).chosen_device())
    scores: dict[str, Any] = {"task": name, "split": split}
    if isinstance(task, LanguageModeling):
        scores |= text_scores(model, task, split, batch_size, autocast=autocast)
    else:
        scores |= training.evaluate(model, task, split, batch_size, autocast=autocast)
    if isinstance(task, WindowTask):
        errors = training.forecast_errors(model, task, split, batch_size=batch_size, autocast=autocast)
        scores["units"] = unit_scores(errors, task.targets)
    elif deviation := getattr(task, "target_scale", {}).get("deviation"):
        scores["units"] = {task.outputs.names[0]: {"rmse": deviation * math.sqrt(scores["mse"])}}
    naive = {"naive": task.naive} if isinstance(task, WindowTask) else {}
    metric = scores[task.metric] if task.metric in scores else math.log(scores["carried"]["per_token"])
    remarks = {"remarks": task.remarks(metric)} if split == "test" else {}
    notes = {"notes": list(task.notes)} if changes and task.notes else {}
    return {**scores, "chance": task.chance, **naive, **remarks, **notes}


def _lines(scores: dict[str, Any]) -> Iterator[str]:
    """Yield lines of text that show the scores; for a language model, these lines contain a table of perplexities."""
    for name, value in scores.items():
        if not isinstance(value, dict | list):
            yield f"{name:<9} {f'{value:.6g}' if isinstance(value, float) else value}"
    for name, errors in scores.get("units", {}).items():
        found = ", ".join(f"{metric} {value:.6g}" for metric, value in errors.items())
        yield f"{printable(name)}: {found} in the units of the data"
    if "carried" in scores:
        yield from columns(scores)
    yield from scores.get("remarks", ())


def _options_for_another_text(folder: Path, options: dict[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return the task options with which the model in ``folder`` is scored on another text: the options of its
    training, and the tokenizer of the model.

    The option ``vocabulary`` is left out, because the tokenizer determines the vocabulary. If ``changes`` select a text
    by name, the option ``separator`` is also left out.
    """
    from stablessm.tasks.text_sources import NAMED

    out = {"vocabulary", "separator"} if changes.get("text") in NAMED else {"vocabulary"}
    return {**{key: value for key, value in options.items() if key not in out}, "tokenizer": str(folder)}

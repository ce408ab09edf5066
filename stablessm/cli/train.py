"""``stablessm train``: trains a model on a built-in task or on your own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import typer

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError, printable, quoted, unknown_name
from stablessm._similar import did_you_mean
from stablessm.cli.model_source import from_factory
from stablessm.cli.options import DEVICE, argument, grouped, in_options, of_command, option, pairs
from stablessm.cli.output import Unsuccessful
from stablessm.cli.text_scores import columns, text_scores


@final
@dataclass(frozen=True)
class DataOptions:
    """Command-line options that choose the data to train on."""

    task: str | None = argument(None, "Name of a task; --list shows them. Not needed with --data.")
    settings: list[str] | None = option(
        None, "Task option, such as length=20 or carry=true; repeatable.", "--option", "-o"
    )
    data: Path | None = option(
        None, "File with your data: .csv (with --target or --label), .npz (inputs, targets), or text."
    )
    target: str | None = option(None, "Columns of --data to forecast, separated by commas.")
    label: str | None = option(None, "Column of --data with the label of each sequence; requires -o sequence=COLUMN.")


@final
@dataclass(frozen=True)
class ModelOptions:
    """Command-line options that choose the model to train."""

    model: str | None = option(None, "Model preset; --list shows them (default: small, or lm-small for the task lm).")
    map: str | None = option(None, "Reparameterization of the recurrent weights: best, exp, softplus, direct, …")
    setting: list[str] | None = option(None, "Model setting, such as n_layers=4; repeatable.", "--set")


@final
@dataclass(frozen=True)
class TrainingOptions:
    """Command-line options that set the fields of a ``TrainingConfig``."""

    epochs: int | None = option(None, "Number of epochs (default: 10, unless --steps is given).", min=1)
    steps: int | None = option(None, "Number of optimizer steps, instead of --epochs.", min=1)
    batch_size: int = option(64, "Number of sequences per batch, over all ranks.", min=1)
    accumulate: int = option(1, "Number of batches whose gradients are accumulated for one optimizer step.", min=1)
    lr: float = option(0.004, "Learning rate.")
    recurrent_lr: float | None = option(None, "Learning rate of the recurrent parameters (default: --lr).")
    weight_decay: float = option(0.01, "Weight decay of all parameters except the recurrent ones.")
    schedule: str = option(
        "cosine",
        "Schedule after the warm-up: cosine, linear, constant, or wsd (constant, then linear).",
        words=("cosine", "linear", "constant", "wsd"),
    )
    warmup: float = option(0.05, "Fraction of the steps, at the start, in which the learning rate rises.")
    cooldown: float = option(
        0.2, "Fraction of the steps, at the end, in which the learning rate falls (--schedule wsd)."
    )
    clip: float = option(1.0, "Norm to which larger gradients are clipped; 0 turns clipping off.")
    select: str = option("best", "Weights to keep: best (by validation) or last.", words=("best", "last"))
    ema: float | None = option(
        None, "Decay of a moving average of the weights, such as 0.999; the average is scored and saved."
    )
    patience: int | None = option(
        None, "Stop after this number of evaluations without a better validation score.", min=1
    )
    init_from: Path | None = option(
        None, "Folder of a run, or of a saved model, from which the initial weights are loaded."
    )
    seed: int = option(0, "Seed of the initial weights, the order of the data and dropout.", min=0)
    replicas: int = option(
        1, "Number of models to train as one computation, with the seeds --seed, --seed + 1, …", min=1
    )
    evaluate_every: int | None = option(None, "Number of steps between evaluations (default: one epoch).", min=1)
    checkpoint_every: int | None = option(None, "Number of steps between checkpoints (default: one per minute).", min=1)
    log_every: int = option(20, "Number of steps between logged metrics.", min=1)
    device: str = DEVICE
    autocast: bool = option(False, "Use bfloat16 outside the recurrences; on a GPU, TF32 inside them.")
    compile: bool = option(False, "Run the model through torch.compile.")
    graph: bool = option(False, "Capture each step as a CUDA graph (requires a GPU).")
    parallel: str = option(
        "ddp",
        "Strategy under torchrun: ddp (the whole model on each rank) or fsdp (the weights split across ranks).",
        words=("ddp", "fsdp"),
    )

    def config(self) -> Any:
        """Return the options as a ``TrainingConfig``."""
        from stablessm.training import TrainingConfig

        if self.epochs is not None and self.steps is not None:
            raise ArgumentError("--epochs, --steps", "one of them", "both")
        real_number("--clip", self.clip, 0, include_low=True)
        source = None if self.init_from is None else str(self.init_from.resolve())
        given: dict[str, Any] = {**vars(self), "clip": self.clip or None, "init_from": source}
        return TrainingConfig(**{**given, "epochs": self.epochs or TrainingConfig.epochs})


@final
@dataclass(frozen=True)
class RunOptions:
    """Command-line options that choose the run folder, and whether to resume the run."""

    out: Path | None = option(None, "Output folder (default: runs/train/TASK-MODEL).")
    resume: bool = option(True, "Resume the run in the output folder, or start again (--fresh).", "--resume/--fresh")
    extend: bool = option(False, "Resume the run with another number of steps, learning rate, schedule or patience.")
    last_good: bool = option(False, "Resume from the previous checkpoint if the last one is damaged.")
    logger: list[str] | None = option(
        None, "Logger of the metrics, as package.module:NAME (executes the module); repeatable."
    )
    show: bool = option(False, "List tasks and models, or the options of TASK, and exit.", "--list")

    def loggers(self) -> list[Any]:
        """Return the loggers that ``--logger`` names; raise an error for a logger without the methods of
        ``training.Logger``.
        """
        return [from_factory("--logger", source, "logger", "begin", "log", "end") for source in self.logger or ()]

    def again(self) -> Any:
        """Return the value that the options request for the argument ``resume`` of ``training.train``: True, False or
        "last-good".
        """
        for name, given in (("--last-good", self.last_good), ("--extend", self.extend)):
            if given and not self.resume:
                raise ArgumentError(name, "no --fresh", "both")
        return "last-good" if self.last_good else self.resume


@grouped
def train(*, source: DataOptions, wanted: ModelOptions, training: TrainingOptions, run: RunOptions) -> dict[str, Any]:
    """Train a model on a task or on your own data.

    The same command resumes an interrupted run. The output folder gets model/ (for stablessm.load and stablessm
    measure), record.json, metrics.jsonl, checkpoints and TensorBoard events; with --replicas 8, it gets a folder with
    these files for each model, replica-0 to replica-7, and the mean scores. A run that diverges stops at once, says
    which mode diverged, and exits with code 1.

    Examples:

      stablessm train --list
      stablessm train recall --list
      stablessm train recall -o length=20 --model paper-recall --steps 5000
      stablessm train mnist --model paper-images --epochs 10 --out runs/mnist
      stablessm train mnist --model paper-images --replicas 8 --out runs/seeds
      stablessm train mnist --model paper-images --epochs 20 --lr 0.001 --extend \\
          --out runs/mnist
      stablessm train mnist --model paper-images \\
          --init-from runs/mnist --out runs/branch
      stablessm train mnist --model paper-images --schedule wsd --ema 0.999 \\
          --patience 3 --out runs/averaged
      stablessm train --data load.csv --target temperature \\
          -o window=96 -o horizon=24 --out runs/load
      stablessm train lm -o text=mine.txt --map best --out runs/mine
      stablessm train lm -o text=mine.txt -o carry=true --out runs/carried
      torchrun --nproc-per-node 2 -m stablessm train mnist \\
          --model paper-images --parallel fsdp --out runs/mnist
    """
    from stablessm import models, tasks
    from stablessm.training import Interrupted
    from stablessm.training.ranks import launched

    name, ranks = source.task, launched()
    try:
        if run.show and source.task is None and source.data is None:
            typer.echo(_overview())
            return {"tasks": list(tasks.TASKS), "models": list(models.PRESETS)}
        name, options = _chosen_task(source)
        if run.show:
            typer.echo(_listing(name))
            return {"options": [option.name for option in tasks.listing(name)]}
        result, scores, remarks = _run(name, options, wanted, training.config(), run)
    except ArgumentError as error:
        for line in (f"cannot train: {in_options(error)}", *_remedies(error.argument, name)):
            typer.secho(printable(line if ranks.main else f"rank {ranks.rank}: {line}"), fg="red", err=True)
        raise typer.Exit(2) from error
    except Interrupted as interruption:
        if ranks.main:
            typer.echo(f"stopped after step {interruption.step}; the same command resumes the run")
        raise typer.Exit(128 + interruption.signal) from None
    if ranks.main:
        typer.echo("\n".join([str(result), *(columns(scores) if scores else ()), *remarks]))
    found = {"folder": result.folder, "steps": result.steps, "seconds": result.seconds, "scores": result.scores}
    diverged = None if result.diverged is None else str(result.diverged)
    found |= {"diverged": diverged, "text": scores, "remarks": remarks}
    if result.diverged is not None:
        raise Unsuccessful(found)
    return found


def _run(
    name: str, options: dict[str, str], wanted: ModelOptions, config: Any, run: RunOptions
) -> tuple[Any, dict[str, Any] | None, list[str]]:
    """Train the model that ``wanted`` describes on the task ``name``; return the result, the test perplexities of a
    language model (None for other models), and remarks about the scores.
    """
    import torch

    from stablessm import models, tasks, training
    from stablessm.tasks.options import json_or_text
    from stablessm.tasks.text import LanguageModeling

    preset = wanted.model or ("lm-small" if name == "lm" else "small")
    if preset not in models.PRESETS:
        raise unknown_name("--model", models.PRESETS, preset)
    device = config.chosen_device()  # raises an error before the data are read
    changes = {key: json_or_text(text) for key, text in pairs("--set", wanted.setting).items()}
    if wanted.map is not None and changes.setdefault("map", wanted.map) != wanted.map:
        raise ArgumentError("--map, --set map", "one of them", "both")
    task = tasks.get(name, **tasks.read_options(name, options))
    config.steps_per_epoch(task.steps("train", config.batch_size))  # raises an error before the model is built
    loggers = run.loggers()
    folder, resume = run.out or Path("runs") / "train" / f"{name}-{preset}", run.again()

    def build() -> torch.nn.Module:
        return models.for_task(task.inputs, task.outputs, preset, **changes)

    with training.joined() as ranks:
        torch.manual_seed(config.seed)
        model = build()
        if ranks.main:
            count = sum(parameter.numel() for parameter in model.parameters())
            sizes = ", ".join(f"{size} {split}" for split, size in task.sizes.items())
            where = device if ranks.size == 1 else f"{ranks.size} × {device} ({config.parallel})"
            times = f"{config.replicas} × " if config.replicas > 1 else ""
            for note in task.notes:
                typer.echo(printable(note))
            typer.echo(f"{task.name}: {sizes}; chance {task.metric} {task.chance:.4g}")
            typer.echo(f"{times}{type(model).__name__} {preset}: {count:,} parameters; on {where}, into {folder}")
        origin = {"task": name, "options": _wherever(name, options)}
        made = build if config.replicas > 1 else model
        how: dict[str, Any] = {"resume": resume, "extend": run.extend, "loggers": loggers}
        result = training.train(made, task, config, folder, origin=origin, **how)
        read = isinstance(task, LanguageModeling) and ranks.size == config.replicas == 1 and result.diverged is None
        scores = text_scores(model, task, "test", config.batch_size, autocast=config.autocast) if read else None
        return result, scores, task.remarks(result.scores["test"][task.metric]) if "test" in result.scores else []


def _wherever(name: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options of the task ``name`` with absolute paths, so that the run can be resumed from any folder."""
    from stablessm import tasks

    places = {option.name for option in tasks.listing(name) if option.place}
    return {
        key: str(Path(text).resolve()) if key in places and Path(text).exists() else text
        for key, text in options.items()
    }


def _remedies(argument: str, task: str | None) -> list[str]:
    """Return texts that say which options of the command correct a wrong argument; ``task`` is the name of the task, if
    known.
    """
    from stablessm import tasks

    if argument == "resume":
        return [
            "--extend allows other steps, learning rates and schedules; --last-good resumes from the previous "
            "checkpoint; --fresh starts again; --out chooses another folder"
        ]
    if argument == "batch_size":
        more = "; a smaller -o length=N cuts the text into more examples" if task == "lm" else ""
        return [f"--batch-size N sets it{more}"]
    if task in tasks.TASKS and argument in {option.name for option in tasks.listing(task)} - of_command.keys():
        return [f"-o {argument}=VALUE sets it; stablessm train {task} --list shows all options"]
    return []


def _chosen_task(source: DataOptions) -> tuple[str, dict[str, str]]:
    name, data, target, label = source.task, source.data, source.target, source.label
    options = pairs("--option", source.settings)
    if data is None:
        if name is None:
            raise ArgumentError("TASK", "a task by name (--list shows them), or your own --data", "neither")
        if target is not None or label is not None:
            raise ArgumentError("--target, --label", "--data with a CSV file", "no --data")
        return name, options
    if not data.is_file():
        raise ArgumentError("--data", "a file", f"{data} (no such file{did_you_mean(data)})")
    if target is not None and label is not None:
        raise ArgumentError("--target, --label", "one of them: a series to forecast, or labeled sequences", "both")
    if (text := ".txt" in data.suffixes or name == "lm") or data.suffix in (".npz", ".npy"):
        if target is not None or label is not None:
            raise ArgumentError("--target, --label", "--data with a CSV file", str(data))
        kind, given = ("lm", {"text": str(data)}) if text else ("arrays", {"inputs": str(data)})
    elif label is not None or name == "sequences":
        kind, given = "sequences", {"file": str(data)} | ({} if label is None else {"label": label})
    else:
        kind, given = "series", {"file": str(data)} | ({} if target is None else {"target": target})
    if name not in (None, kind):
        raise ArgumentError("TASK", f"no TASK, or {kind}, for this --data", quoted(name))
    return kind, {**given, **options}


def _overview() -> str:
    from stablessm import models, tasks

    named = {"tasks": {name: entry.summary for name, entry in tasks.TASKS.items()}}
    named["models (--model), with the parameters of a classifier of one channel; of lm-…, for 8192 tokens"] = {
        name: f"{preset.parameters:>13,}  {preset.about.split('. ')[0]}" for name, preset in models.PRESETS.items()
    }
    return "\n\n".join("\n".join([title, *_aligned([*rows.items()])]) for title, rows in named.items())


def _listing(task: str) -> str:
    from dataclasses import MISSING

    from stablessm import tasks

    rows = [
        (o.name, o.kind, "required" if o.default is MISSING else str(o.default), o.help) for o in tasks.listing(task)
    ]
    return "\n".join([f"options of {task}: name, kind, default", *_aligned(rows)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

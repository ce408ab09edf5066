"""The number that a search optimizes: the score of a model trained on a task, or a number that an experiment
computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np

from stablessm import record
from stablessm._errors import ArgumentError, quoted
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Size, execute
from stablessm.experiments.frame.settings import changed
from stablessm.experiments.frame.stages import Stages

Direction: TypeAlias = Literal["minimize", "maximize"]
_REDUCE: Mapping[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "last": lambda array: np.mean(np.atleast_1d(array)[-1]),
}


class Objective(Protocol):
    """The number that a search optimizes, as a function of the settings, which are given as text."""

    @property
    def direction(self) -> Direction:
        """Return ``minimize`` if the search looks for the smallest value of the objective, and ``maximize`` if it looks
        for the largest.
        """
        ...

    def check(self, names: list[str]) -> None:
        """Raise an error if a search cannot vary the settings with these names, for example because one of the names is
        unknown.
        """

    def value(self, changes: Mapping[str, str], folder: Path) -> float:
        """Compute the objective for these settings; return NaN if it cannot be computed, for example after a
        divergence. The run is stored in ``folder``, so that an interrupted run can be resumed.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return a dictionary that identifies the objective. A stored search is resumed only if its objective has the
        same dictionary.
        """
        ...


@final
@dataclass(frozen=True)
class OfExperiment:
    """An objective computed from an array of a stage of an experiment. ``of`` is ``STAGE/ARRAY:HOW``, where HOW turns
    the array into a number: ``mean``, ``min``, ``max``, or ``last`` for the mean of the last row.
    """

    id: str
    of: str
    size: Size = "smoke"
    direction: Direction = "minimize"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stage, array, how = self._parts()
        if not stage or not array or how not in _REDUCE:
            raise ArgumentError(
                "--objective", f"STAGE/ARRAY:HOW, with HOW one of {', '.join(_REDUCE)}", quoted(self.of)
            )

    def _parts(self) -> tuple[str, str, str]:
        place, _, how = self.of.partition(":")
        stage, _, array = place.partition("/")
        return stage, array, how or "mean"

    def check(self, names: list[str]) -> None:
        """Raise an error unless every name is a field of the settings of the experiment; ``a.b`` means field ``b`` of
        the nested settings ``a``.
        """
        config = catalog.get(self.id).config(self.size)
        for name in names:
            place: Any = config
            for part in name.split("."):
                known = [f.name for f in fields(place)] if is_dataclass(place) else []
                if part not in known:
                    raise ArgumentError("--over", f"one of the settings {', '.join(known)}", name)
                place = getattr(place, part)
        changed(config, self.settings)

    def value(self, changes: Mapping[str, str], folder: Path) -> float:
        """Run the experiment with these settings, write its output below ``folder``, and return the objective."""
        settings = {**self.settings, **changes}
        run, _ = execute(catalog.get(self.id), self.size, folder, changes=settings, progress=False)
        stage, name, how = self._parts()
        stages = Stages(run)
        arrays = record.load_arrays(stages.path(stage))[1] if stage in stages else {}
        if name not in arrays:
            there = ", ".join(stages.stages())
            raise ArgumentError("--objective", f"STAGE/ARRAY of an existing stage: {there}", self.of)
        return float(_REDUCE[how](arrays[name]))

    def describe(self) -> dict[str, Any]:
        """Return a dictionary that identifies the objective: experiment, size, array and fixed settings, without the
        ranges of the search.
        """
        return {"experiment": self.id, "size": self.size, "objective": self.of, "settings": dict(self.settings)}


@final
@dataclass(frozen=True)
class OfTask:
    """The objective of a search on a task: the best validation score of a model that is trained with the given
    settings.

    The name of a setting is a field of ``TrainingConfig``, ``model.NAME`` for an argument of the model, or
    ``task.NAME`` for an argument of the task.
    """

    task: str
    model: str = "small"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def direction(self) -> Direction:
        """Return ``maximize`` if a larger value of the metric of the task is better, otherwise ``minimize``."""
        return "maximize" if self._task(self.settings).higher_is_better else "minimize"

    def check(self, names: list[str]) -> None:
        """Raise an error if a search cannot vary the settings with these names, for example because one of the names is
        unknown for the task or the model.
        """
        from stablessm import tasks
        from stablessm.training import TrainingConfig

        known = [f.name for f in fields(TrainingConfig)]
        twice = [name for name in names if name in self.settings or names.count(name) > 1]
        if twice:
            raise ArgumentError("--over", "each setting once, and not with --set", twice[0])
        if {"epochs", "steps"} <= {*names, *self.settings}:
            raise ArgumentError("--over, --set", "epochs or steps", "both")
        for name in (*names, *self.settings):
            if name not in known and not name.startswith(("model.", "task.")):
                raise ArgumentError("--over", f"model.NAME, task.NAME or one of {', '.join(known)}", name)
        options = [f"task.{option.name}" for option in tasks.listing(self.task)]
        for name in names:
            if name.startswith("task.") and name not in options:
                raise ArgumentError("--over", f"one of {', '.join(options)}", name)
        try:
            task = self._task(self.settings)
        except ArgumentError as error:
            raise ArgumentError("--set", f"options of the task ({error})", f"task.{error.argument}") from error
        if not task.sizes.get("valid"):
            raise ArgumentError("--set", "a task with validation examples, which give the score", self.task)

    def value(self, changes: Mapping[str, str], folder: Path) -> float:
        """Train a model with these settings and return its best validation score; NaN if the training diverges."""
        import torch

        from stablessm import models, training
        from stablessm.tasks.options import json_or_text

        settings = {**self.settings, **changes}
        own = {name: text for name, text in settings.items() if "." not in name}
        config = changed(training.TrainingConfig(), own)
        task = self._task(settings)
        torch.manual_seed(config.seed)
        options = {name: json_or_text(text) for name, text in _below("model.", settings).items()}
        model = models.for_task(task.inputs, task.outputs, self.model, **options)
        result = training.train(model, task, config, folder, progress=False)
        if result.diverged is not None or result.best is None:
            return math.nan
        return float(result.best[task.metric])

    def describe(self) -> dict[str, Any]:
        """Return a dictionary that identifies the objective: task, model and fixed settings, without the ranges of the
        search.
        """
        return {"task": self.task, "model": self.model, "settings": dict(self.settings)}

    def _task(self, settings: Mapping[str, str]) -> Any:
        from stablessm import tasks

        return tasks.get(self.task, **tasks.read_options(self.task, _below("task.", settings)))


def _below(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in settings.items() if name.startswith(prefix)}

"""A model trained by the loop that users have, in a folder of an experiment."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from stablessm import training
from stablessm.experiments.run import Run
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig
from stablessm.training.result import TrainingResult


def trained(model: nn.Module, task: Task, settings: TrainingConfig, run: Run, name: str) -> TrainingResult:
    """In ``name`` of the run's folder, with checkpoints there; without a CUDA graph where there is no GPU."""
    plain = replace(settings, graph=False)
    settings = settings if plain.chosen_device().type == "cuda" else plain
    return training.train(model, task, settings, run.folder / name, progress=run.progress)

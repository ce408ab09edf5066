"""A model trained by the loop that users have, in a folder of an experiment."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from stablessm import training
from stablessm.experiments.frame.run import Run
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig
from stablessm.training.result import TrainingResult


def trained(model: nn.Module, task: Task, settings: TrainingConfig, run: Run, name: str) -> TrainingResult:
    """In ``name`` of the run's folder, with checkpoints there."""
    return training.train(model, task, possible(settings), run.folder / name, progress=run.progress)


def possible(settings: TrainingConfig) -> TrainingConfig:
    """The same, without a CUDA graph where there is no GPU: an experiment has one config for every machine.

    >>> possible(TrainingConfig(graph=True, device="cpu")).graph
    False
    """
    plain = replace(settings, graph=False)
    return settings if plain.chosen_device().type == "cuda" else plain

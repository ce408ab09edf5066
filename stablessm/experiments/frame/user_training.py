"""Trains a model with the public training loop in the run folder of an experiment."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from stablessm import training
from stablessm.experiments.frame.run import Run
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig
from stablessm.training.result import TrainingResult


def trained(model: nn.Module, task: Task, settings: TrainingConfig, run: Run, name: str) -> TrainingResult:
    """Train a model with the public training loop, and return the result. The results and checkpoints are written to
    the subfolder ``name`` of the run folder.
    """
    return training.train(model, task, possible(settings), run.folder / name, progress=run.progress)


def possible(settings: TrainingConfig) -> TrainingConfig:
    """Return the training options, with the CUDA graph switched off if there is no GPU, so that one config works on all
    machines.

    >>> possible(TrainingConfig(graph=True, device="cpu")).graph
    False
    """
    plain = replace(settings, graph=False)
    return settings if plain.chosen_device().type == "cuda" else plain

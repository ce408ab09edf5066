"""An exponential moving average of the weights of a model during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from stablessm.training.trainee import Trainee, placed

_ENDING = "/ema"
"""Suffix of the name of an averaged tensor in a checkpoint, after the name of its parameter."""


@final
class Average:
    """An exponential moving average of the parameters of a model, with which the model can be evaluated.

    After update t = 1, 2, … the average becomes d' · average + (1 - d') · parameters with d' = min(decay, t / (t + 9)),
    so that the initial weights are soon forgotten. Buffers are not averaged.

    Args:
        trainee: The model. If its weights are in shards, the average is in shards too.
        decay: The largest value of d', for example 0.999.
        prefix: Prefix of the tensors' names in a checkpoint, which distinguishes the averages of several models.

    >>> from torch import nn
    >>> from stablessm.training.ranks import Ranks
    >>> from stablessm.training.trainee import Whole
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> average = Average(Whole(model, torch.device("cpu"), Ranks(), compiled=False, carries=False), decay=0.5)
    >>> for step, value in enumerate([1.0, 2.0, 4.0], 1):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update(step)
    >>> with average.applied():
    ...     print(round(model.weight.item(), 3))
    3.45
    >>> model.weight.item()
    4.0
    """

    def __init__(self, trainee: Trainee, decay: float, prefix: str = "") -> None:
        self._trainee, self._parameters = trainee, dict(trainee.trained.named_parameters())
        self._decay, self._prefix = decay, prefix
        self._means = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the current parameters, after update number ``step`` (counted from 1)."""
        weight = 1 - min(self._decay, step / (step + 9))
        for name, mean in self._means.items():
            mean.lerp_(self._parameters[name].detach(), weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the model has its averaged parameters. At the end of the context, the model gets
        its own parameters back.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the parameters of the model by their averages, permanently."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self._means[name])
        self._trainee.changed()

    def tensors(self) -> dict[str, Tensor]:
        """Return the averaged parameters by name, to be stored in a checkpoint."""
        return {f"{self._prefix}{name}{_ENDING}": mean for name, mean in self._means.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the averaged parameters from the tensors of a checkpoint."""
        for name, mean in self._means.items():
            mean.copy_(placed(tensors[f"{self._prefix}{name}{_ENDING}"], mean))

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            kept = parameter.clone()
            parameter.copy_(self._means[name])
            self._means[name].copy_(kept)
        self._trainee.changed()

"""The settings of a training run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal, TypeAlias, final

import torch

from stablessm._arguments import real_number
from stablessm._checked import Count, NotNegative, Part, Positive, Share, Size, checked
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm.training import schedules
from stablessm.training.schedules import Name

FREE = ("device", "graph", "checkpoint_every", "parallel")
"""Settings that may differ when a run is resumed. They change the results only by rounding errors."""
EXTENDS = ("epochs", "steps", "lr", "recurrent_lr", "schedule", "warmup", "cooldown", "patience")
"""Settings that may differ when a run is extended."""
Select: TypeAlias = Literal["best", "last"]
Parallel: TypeAlias = Literal["ddp", "fsdp"]
_LATER = ("replicas", "schedule", "cooldown", "state_noise", "ema", "patience", "init_from")
"""Settings that earlier versions did not have. They are stored only if they differ from their default."""


@final
@checked
@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training run with AdamW. By default the learning rate warms up, then falls along a cosine.

    >>> TrainingConfig(epochs=2, batch_size=32).total_steps(batches=100)
    200
    >>> TrainingConfig(lr=-1.0)
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: lr: expected a finite number above 0, got -1.0
    """

    epochs: Size = 10
    steps: Size | None = None
    """Number of updates of the weights, instead of ``epochs``."""
    batch_size: Size = 64
    """Number of sequences per batch, over all ranks."""
    accumulate: Size = 1
    """Number of batches per step. The loss is the mean over the scored positions of all batches of the step."""
    lr: Positive = 0.004
    recurrent_lr: Positive | None = None
    """Learning rate of the recurrent parameters (default: ``lr``)."""
    weight_decay: NotNegative = 0.01
    """Weight decay of all parameters except the recurrent parameters."""
    schedule: Name = "cosine"
    """Learning rate after the warm-up: ``constant``, ``linear`` or ``cosine`` to zero, or ``wsd`` (constant, then
    linear to zero in the ``cooldown``). ``stablessm.training.schedules`` has the formulas."""
    warmup: Part = 0.05
    """Fraction of the steps during which the learning rate rises from 0."""
    cooldown: Part = 0.2
    """Fraction of the steps, at the end, during which the learning rate of ``wsd`` falls."""
    clip: Positive | None = 1.0
    """Largest norm of the gradient of all parameters; None turns clipping off."""
    autocast: bool = False
    """Compute matrix products in bfloat16. Recurrences stay in float32 (on a GPU, with TF32 matrix products)."""
    compile: bool = False
    """Run the model through ``torch.compile``."""
    graph: bool = False
    """Capture the forward and backward pass of a step as a CUDA graph. Requires one GPU and sequences of one length."""
    state_noise: Positive | None = None
    """Standard deviation of noise that is added to the initial state of a batch, relative to the root mean square of
    that state. Requires a task that carries the state. A model then learns to continue from states that it has not
    seen, which helps on texts longer than the training texts."""
    seed: Count = 0
    """Seed of the order of the data and of dropout. It does not affect the initial weights of a given model."""
    select: Select = "best"
    """Weights to keep after training: ``best`` (by validation score) or ``last``."""
    ema: Share | None = None
    """Decay d of an exponential moving average of the weights: after update t = 1, 2, … the average becomes
    d' · average + (1 - d') · weights with d' = min(d, t / (t + 9)). Validation, selection and ``model/`` then use the
    average instead of the weights."""
    patience: Size | None = None
    """Stop when the validation metric has not improved in this number of consecutive validations."""
    init_from: str | os.PathLike[str] | None = None
    """Folder of a run or of a saved model whose weights are the initial weights of this run."""
    evaluate_every: Size | None = None
    """Number of steps between validations (default: an epoch)."""
    checkpoint_every: Size | None = None
    """Number of steps between checkpoints (default: about a minute)."""
    log_every: Size = 20
    """Number of steps between log entries; the host does not wait for the device in between."""
    explode: float = 10.0
    """A run has diverged if its loss, averaged over about ten steps, exceeds this factor times the first loss."""
    device: str | torch.device | None = "auto"
    """Device to train on: ``auto`` or None (a GPU if there is one), ``cpu``, ``cuda`` or a ``torch.device``."""
    replicas: Size = 1
    """Number of models that are trained as one computation, with the seeds ``seed``, ``seed + 1``, …"""
    parallel: Parallel = "ddp"
    """Parallel training under ``torchrun``: ``ddp`` keeps the whole model on every rank, ``fsdp`` a shard of it.
    Ignored by a single process."""

    def __post_init__(self) -> None:
        device = "auto" if self.device is None else self.device
        if not isinstance(device, str | torch.device):
            raise ArgumentError("device", "auto, cpu, cuda or a torch.device", quoted(device))
        object.__setattr__(self, "device", str(device))
        if self.init_from is not None:
            source = os.fspath(self.init_from) if isinstance(self.init_from, str | os.PathLike) else None
            if not isinstance(source, str):
                raise ArgumentError("init_from", "the folder of a run or of a saved model", quoted(self.init_from))
            object.__setattr__(self, "init_from", source)
        real_number("explode", self.explode, 1)
        if self.schedule == "wsd" and not self.warmup + self.cooldown <= 1:
            raise ArgumentError("cooldown", f"at most 1 - warmup = {1 - self.warmup:g}", self.cooldown)
        if self.state_noise is not None and self.replicas > 1:
            raise ArgumentError("replicas", "1 with state_noise", self.replicas)
        for name in ("graph", "compile"):
            if self.replicas > 1 and getattr(self, name):
                raise ArgumentError("replicas", f"1 with {name}=True", self.replicas)

    def total_steps(self, batches: int) -> int:
        """Return the number of updates of the run, given the number of batches per epoch."""
        return self.epochs * self.steps_per_epoch(batches) if self.steps is None else self.steps

    def steps_per_epoch(self, batches: int) -> int:
        """Return the number of updates per epoch, given the number of batches.

        With ``accumulate``, an update takes several batches; last batches that are too few for an update are dropped.
        """
        if batches < self.accumulate:
            raise ArgumentError("accumulate", f"at most the {batches} batches of an epoch", self.accumulate)
        return batches // self.accumulate

    def rates(self, steps: int) -> Callable[[int], float]:
        """Return the learning-rate schedule of a run of ``steps`` steps: a function from the number of a step to the
        factor by which the learning rate is multiplied at this step.
        """
        return partial(schedules.rate, steps=steps, warmup=self.warmup, schedule=self.schedule, cooldown=self.cooldown)

    def chosen_device(self) -> torch.device:
        """Return the device to train on, as ``device`` requests; raise an error if there is no such device."""
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else str(self.device)
        if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
            raise unknown_name("device", ("auto", "cpu", "cuda"), self.device, "auto, cpu or cuda")
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError("device", "cpu: PyTorch finds no GPU here", quoted(self.device))
        if self.graph and device.type != "cuda":
            raise ArgumentError("graph", "a GPU", device.type)
        if self.graph and device.index is not None and device.index != torch.cuda.current_device():
            raise ArgumentError("graph", "the current GPU (torch.cuda.set_device, CUDA_VISIBLE_DEVICES)", device)
        return device

    @staticmethod
    def filled(binding: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings in ``binding``, a result of :meth:`binding`, completed with the default values of missing
        settings.
        """
        return {field.name: field.default for field in fields(TrainingConfig) if field.name in _LATER} | {**binding}

    def binding(self) -> dict[str, Any]:
        """Return the settings that must not change when a run is resumed.

        Settings that later versions of this package added are left out if they have their default value.
        """
        default = self.filled({})
        return {name: value for name, value in asdict(self).items()
                if name not in FREE and not (name in default and value == default[name])}  # fmt: skip

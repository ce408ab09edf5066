"""Trains a stack of classifiers with AdamW, each at its own learning rate. If one model diverges, the other models
continue. In the shapes below, M is the number of models, and P is the number of weights of a model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Run
from stablessm.experiments.frame.training import device_called, looped
from stablessm.experiments.stable_ssm.stacked_classifier import StackedClassifier
from stablessm.models import SequenceClassifier
from stablessm.tasks.base import Batch, Split, Task
from stablessm.training import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Objective
from stablessm.training.optimizer import StackedOptimizer
from stablessm.training.precision import tensor_float32
from stablessm.training.stack import Stack, stacked_name
from stablessm.training.steps import Hooks

_DROPOUT = 1 << 62
"""Offset of the dropout seeds from the seeds that order the data."""


@dataclass(frozen=True)
class StackTraining:
    """Options of AdamW with linear warm-up, cosine decay to zero, and no weight decay of recurrent weights."""

    batch: int
    epochs: int = 10
    steps: int | None = None
    """Number of steps, instead of ``epochs``."""
    weight_decay: float = 0.01
    warmup: float = 0.1
    """Fraction of the steps in which the rate rises from 0."""
    clip: float | None = 1.0
    """Largest norm of a model's gradient; None for no clipping."""
    test_batch: int = 200
    device: str = "auto"
    """A device, or ``auto``: a GPU if there is one."""
    fast: bool = False
    """Whether training is compiled into a CUDA graph, with dense products in bfloat16 and products inside a scan in
    TF32."""

    def total(self, task: Task) -> int:
        """Return the total number of training steps."""
        return self.epochs * task.steps("train", self.batch) if self.steps is None else self.steps


def train(
    run: Run,
    name: str,
    models: Sequence[SequenceClassifier],
    rates: Sequence[float],
    task: Task,
    options: StackTraining,
    seed: int,
    rows: int = 20,
) -> dict[str, np.ndarray]:
    """Train the models as one stage of a run, each model at its own learning rate.

    All models get the same batches, in an order that depends on ``seed``, and the same dropout masks. If the loss or
    gradient of a model is not finite, the model keeps its weights from then on.

    Returns:
        Arrays for M models. ``weights`` (M, P): the trained weights. ``diverged`` (M,): the step of the divergence, or
            -1. ``losses`` and ``accuracies`` (rows, M): means over each of ``rows`` equal parts of the training,
            computed on the training batches with dropout, before each update.
    """

    def compute() -> Mapping[str, np.ndarray]:
        device = device_called(options.device)
        classifier, data, total = StackedClassifier(models, fast=options.fast), task.to(device), options.total(task)
        stack, watch = Stack(copy.deepcopy(list(models)), device), Watch(device, len(models))
        epoch, generator = data.steps("train", options.batch), torch.Generator(device)
        config = TrainingConfig(lr=1.0, weight_decay=options.weight_decay, clip=options.clip, warmup=options.warmup)
        optimizer = StackedOptimizer(stack, config, config.rates(total), rates)
        named = {name: stack.get_parameter(stacked_name(name)) for name in classifier.shapes}

        def batch(step: int) -> list[Tensor]:
            found = data.batch("train", options.batch, seed=seed, epoch=step // epoch, index=step % epoch)
            if found.lengths is not None:
                raise ArgumentError("task", "sequences of one length", "lengths")
            generator.manual_seed(_DROPOUT + seed * 2**31 + step)
            return [tensor for tensor in (found.inputs, found.targets, found.weights) if tensor is not None]

        def loss(inputs: Tensor, targets: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
            sums = _sums(classifier(named, inputs, generator), Batch(inputs, targets, weights=counted))
            return sums[0] / sums[2], torch.stack(sums).detach()

        graph = options.fast and device.type == "cuda"
        strategy = Objective(loss, batch, stack.parameters(), graph=graph, generator=generator)
        hook = _Parts(strategy, watch, total, -(-total // rows), partial(run.log, name))
        run.train(name, looped(stack, strategy, optimizer, watch, total, hook, hook.every))
        sums = hook.sums.cpu().numpy()
        return {
            "weights": torch.cat([p.detach().flatten(1) for p in named.values()], 1).cpu().numpy(),
            "diverged": hook.diverged.cpu().numpy(),
            "losses": sums[:, 0] / sums[:, 2],
            "accuracies": sums[:, 1] / sums[:, 2],
        }

    with tensor_float32(options.fast):
        return dict(run.stage(name, compute))


def evaluate(
    models: Sequence[SequenceClassifier], weights: np.ndarray, task: Task, split: Split, options: StackTraining
) -> dict[str, np.ndarray]:
    """Return ``loss`` and ``accuracy`` on a split, both with one number per model. An output that is not finite counts
    as a wrong answer.
    """
    device = device_called(options.device)
    stack, task = StackedClassifier(models), task.to(device)
    own = torch.from_numpy(weights).to(device)
    total = torch.zeros(3, len(models), dtype=torch.float64, device=device)
    with torch.no_grad():
        for index in range(task.steps(split, options.test_batch)):
            batch = task.batch(split, options.test_batch, index=index)
            at = None if batch.weights is None else batch.weights.any(0).nonzero()[:, 0]
            total += torch.stack(_sums(stack(own, batch.inputs, at=at), batch, at))
    loss, hits, count = total.cpu().numpy()
    return {"loss": loss / count, "accuracy": hits / count}


class _Parts(Hooks):
    """A hook that sums the losses and the numbers of correct answers over each part of the training, and stores the
    steps at which models diverge.
    """

    def __init__(self, strategy: Objective, watch: Watch, total: int, every: int, log: Callable[..., None]) -> None:
        self.strategy, self.watch, self.every, self.log = strategy, watch, every, log
        bad = watch.bad
        self.sums = torch.zeros(-(-total // every), 3, len(bad), dtype=torch.float64, device=bad.device)
        self.diverged = torch.full((len(bad),), -1, device=bad.device)

    def clipped(self, step: int) -> None:
        assert self.strategy.noted is not None
        self.sums[step // self.every] += self.strategy.noted
        self.diverged = torch.where((self.watch.bad > 0) & (self.diverged < 0), step, self.diverged)

    def looked(self, step: int) -> None:
        loss, _, count = self.sums[(step - 1) // self.every].tolist()
        self.log(step=step - 1, losses=[a / b for a, b in zip(loss, count, strict=True)])

    def tensors(self) -> dict[str, Tensor]:
        return {"sums": self.sums, "diverged": self.diverged}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        self.sums, self.diverged = tensors["sums"].to(self.sums), tensors["diverged"].to(self.diverged)


def _sums(logits: Tensor, batch: Batch, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return three numbers for each model: the summed cross-entropy, the number of correct answers, and the number of
    answers.
    """
    targets, weights = batch.targets, batch.weights
    if at is not None:
        targets, weights = targets[:, at], None if weights is None else weights[:, at]
    flat = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    every = targets.expand(len(logits), *targets.shape)
    entropy = F.cross_entropy(flat, every.flatten(), reduction="none").view(every.shape)
    right = (flat.detach().argmax(-1).view(every.shape) == every) & entropy.detach().isfinite()
    counted = torch.ones_like(targets, dtype=entropy.dtype) if weights is None else weights.to(entropy.dtype)
    hits = (right * counted).flatten(1).sum(1)
    return (entropy * counted).flatten(1).sum(1), hits, counted.sum().expand(len(logits))

"""AdamW for a stack of classifiers, each with its own rate; one that diverges stops, the others go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.experiments.run import Run
from stablessm.experiments.stacked_classifier import StackedClassifier
from stablessm.experiments.training import device_called
from stablessm.models import SequenceClassifier
from stablessm.tasks.base import Batch, Split, Task
from stablessm.training.precision import tensor_float32
from stablessm.training.replayed import Replayed
from stablessm.training.schedule import rate

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_DROPOUT = 1 << 62
"""Apart from the seeds with which tasks order their data."""


@dataclass(frozen=True)
class StackTraining:
    """AdamW without decay of recurrent weights, a linear warm-up, then a cosine to zero."""

    batch: int
    epochs: int = 10
    steps: int | None = None
    """Instead of ``epochs``."""
    weight_decay: float = 0.01
    warmup: float = 0.1
    """Share of the steps in which the rate rises from 0."""
    clip: float = 1.0
    """Largest norm of a model's gradient."""
    test_batch: int = 200
    device: str = "auto"
    """``auto``: a GPU if there is one."""
    fast: bool = False
    """In training: compiled, a CUDA graph, dense products in bfloat16, and those inside a scan in TF32."""

    def total(self, task: Task) -> int:
        """Steps in all."""
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
    """Train the models, each at its rate, as a stage of a run.

    All see the same batches, in the order that ``seed`` decides, and the same dropout. A model whose loss or gradient
    is not finite keeps the weights that it had before.

    Returns:
        ``weights`` (M, P); ``diverged`` (M,) the step at which a model did, or -1; and over ``rows`` equal parts of the
        training ``losses`` and ``accuracies`` (rows, M), with dropout and before each update.
    """

    def compute() -> Mapping[str, np.ndarray]:
        with tensor_float32(options.fast):
            return _train(run, name, models, rates, task, options, seed, rows)

    return dict(run.stage(name, compute))


def evaluate(
    models: Sequence[SequenceClassifier], weights: np.ndarray, task: Task, split: Split, options: StackTraining
) -> dict[str, np.ndarray]:
    """``loss`` and ``accuracy`` (M,) on a split; an answer that is not finite is wrong."""
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


def _train(
    run: Run,
    name: str,
    models: Sequence[SequenceClassifier],
    rates: Sequence[float],
    task: Task,
    options: StackTraining,
    seed: int,
    rows: int,
) -> Mapping[str, np.ndarray]:
    device = device_called(options.device)
    stack, task, total = StackedClassifier(models, fast=options.fast), task.to(device), options.total(task)
    epoch, per_row = task.steps("train", options.batch), -(-total // rows)
    weights = stack.weights.to(device)
    decay = options.weight_decay * (~stack.recurrent()).to(weights)
    full = torch.tensor(rates, dtype=weights.dtype, device=device)[:, None]
    state = {
        "weights": weights,
        "first": torch.zeros_like(weights),
        "second": torch.zeros_like(weights),
        "diverged": torch.full((len(models),), -1, device=device),
        "sums": torch.zeros(-(-total // per_row), 3, len(models), dtype=torch.float64, device=device),
    }

    def save() -> dict[str, np.ndarray]:
        return {key: tensor.cpu().numpy() for key, tensor in state.items()}

    def restore(arrays: Mapping[str, np.ndarray]) -> None:
        for key, tensor in state.items():
            tensor.copy_(torch.from_numpy(arrays[key]))

    generator = torch.Generator(device)

    def update(clock: Tensor, inputs: Tensor, targets: Tensor, counted: Tensor | None = None) -> Tensor:
        """One step in place; what it summed. ``clock``: the rate's factor, and which step this is, from one."""
        leaf = weights.detach().requires_grad_()
        loss, hits, count = _sums(stack(leaf, inputs, generator), Batch(inputs, targets, weights=counted))
        (gradient,) = torch.autograd.grad((loss / count).sum(), leaf)
        with torch.no_grad():
            norm = gradient.norm(dim=1)
            well = (state["diverged"] < 0) & loss.isfinite() & norm.isfinite()
            now = (clock[1] - 1).long()
            state["diverged"].copy_(torch.where(well | (state["diverged"] >= 0), state["diverged"], now))
            shorter = (options.clip / (norm + 1e-6)).clamp(max=1.0)
            gradient = torch.where(well[:, None], gradient * shorter[:, None], 0.0)
            rates = clock[0].to(full) * full * well[:, None]
            _adamw(weights, state["first"], state["second"], gradient, rates, decay, clock[1].to(full))
            return torch.stack([loss, hits, count]).double()

    replayed: Replayed[Tensor] | None = None
    for step in run.loop(name, total, save, restore):
        batch = task.batch("train", options.batch, seed=seed, epoch=step // epoch, index=step % epoch)
        if batch.lengths is not None:
            raise ArgumentError("task", "sequences of one length", "lengths")
        generator.manual_seed(_DROPOUT + seed * 2**31 + step)
        clock = torch.tensor([rate(step, total, options.warmup), step + 1], dtype=torch.float64, device=device)
        arguments = (clock, batch.inputs, batch.targets, *([] if batch.weights is None else [batch.weights]))
        if replayed is None and options.fast and device.type == "cuda":
            replayed = Replayed(update, arguments, state.values(), generator)
            generator.manual_seed(_DROPOUT + seed * 2**31 + step)
        state["sums"][step // per_row] += (replayed or update)(*arguments)
        if (step + 1) % per_row == 0 or step + 1 == total:
            loss, _, count = state["sums"][step // per_row].tolist()
            run.log(name, step=step, losses=[a / b for a, b in zip(loss, count, strict=True)])
    sums = state["sums"].cpu().numpy()
    return {
        "weights": weights.cpu().numpy(),
        "diverged": state["diverged"].cpu().numpy(),
        "losses": sums[:, 0] / sums[:, 2],
        "accuracies": sums[:, 1] / sums[:, 2],
    }


def _sums(logits: Tensor, batch: Batch, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """For each model the sums (M,) of the cross-entropy, of right answers and of what counts."""
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


def _adamw(
    weights: Tensor, first: Tensor, second: Tensor, gradient: Tensor, rates: Tensor, decay: Tensor, count: Tensor
) -> None:
    """One step in place, as ``torch.optim.AdamW``; rates are (M, 1), decay is (P,)."""
    (b1, b2), eps = _BETAS, _EPSILON
    weights.mul_(1 - rates * decay)
    first.lerp_(gradient, 1 - b1)
    second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
    root = (second / (1 - b2**count)).sqrt_().add_(eps)
    weights.sub_(rates / (1 - b1**count) * first / root)

"""Trains several language models with one map, but different learning rates and seeds, as one computation. In the
shapes below, M is the number of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Run
from stablessm.experiments.frame.training import device_called, looped
from stablessm.instruments.modes import mapped_weight, ratio, recurrent_modules
from stablessm.models.sequence_model import SequenceModel
from stablessm.tasks.base import Batch, Split, Task
from stablessm.training import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.evaluate import apply
from stablessm.training.gradient import Objective
from stablessm.training.optimizer import StackedOptimizer
from stablessm.training.stack import Stack, stacked_name
from stablessm.training.steps import Hooks


@dataclass(frozen=True)
class StackOptions:
    """Options of AdamW with linear warm-up, cosine decay to zero, and no weight decay of recurrent weights."""

    steps: int
    batch: int = 8
    warmup: int = 60
    """Number of steps over which the rate rises from 0."""
    recurrent: float = 0.8
    """Learning rate of the recurrent weights relative to the other weights: the paper has 0.004 and 0.005."""
    weight_decay: float = 0.25
    explode: float = 1.5
    """A training run has diverged when its loss, averaged over about ten steps, is this multiple of the loss of equal
    probabilities."""
    look_every: int = 20
    """Number of steps between two measurements of |gradient| / |weight| and of the time scales."""
    scored: int = 20
    """Largest number of batches of the test text that are scored."""
    autocast: bool = True
    """Whether matrix products are computed in bfloat16."""
    graph: bool = True
    """Whether a GPU runs a step as a CUDA graph; a CPU ignores it."""
    device: str = "auto"
    """A device, or ``auto``: a GPU if there is one."""


@final
@dataclass(frozen=True)
class Member:
    """One model of a stack: its seed and its learning rates. The seed also determines the order of its training
    data.
    """

    seed: int
    rate: float
    recurrent: float
    """Factor of the learning rate of the recurrent weights, in addition to ``StackOptions.recurrent``."""


def log_timescale(eigenvalues: Tensor) -> Tensor:
    """Return the logarithm of the time scale τ of each eigenvalue λ, defined by |λ| = e^(-1/τ); infinite for |λ| ≥ 1.

    >>> log_timescale(torch.tensor([0.5, 1.5])).exp()
    tensor([1.4427,    inf])
    """
    return -(-eigenvalues.abs().clamp(max=1.0).log()).log()


def mobility(map: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Return |d log τ / dw|, the relative change of a mode's time scale τ per unit change of its weight w.

    >>> from stablessm import reparam
    >>> exp = reparam.get("exp", time="discrete")
    >>> mobility(exp, exp.weights(torch.tensor([0.5, 0.999]))).round(decimals=3)
    tensor([1., 1.])
    """
    w = weights.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(log_timescale(map(w)).sum(), w)
    return slope.abs().to(weights.dtype)


def train(
    run: Run, name: str, start: Callable[[int], SequenceModel], members: Sequence[Member], task: Task,
    options: StackOptions, clip: float | None, *, equal: bool,
) -> Mapping[str, np.ndarray]:  # fmt: skip
    """Train a stack of language models inside a stage, with checkpoints.

    Args:
        start: Function from a seed to the untrained model.
        clip: Largest norm of the gradient of a model.
        equal: If True, the learning rate of each recurrent weight is divided by its initial :func:`mobility`. In the
            first steps the time scales of all modes then change equally fast, whatever the map is.

    Returns:
        Arrays for M models. ``losses`` and ``norms`` (steps, M): the training loss and the norm of the gradient at each
            step. ``diverged`` (M,): the step of the divergence, or -1. ``test`` (M,): the test loss in nats per token.
            ``before`` and ``after`` (M, layers, states): the eigenvalues before and after training. ``looks`` (L,): the
            steps at which the following two arrays are measured. ``largest`` (L, M): the largest |gradient| / |weight|
            of the recurrent weights. ``moved`` (L, M): the median over the modes of |change of log τ|, where τ is the
            time scale.
    """
    device, data = device_called(options.device), task.to(device_called(options.device))
    models = [start(member.seed) for member in members]
    layers = [(name, layer, mapped_weight(layer)) for name, layer in recurrent_modules(models[0])]
    stack, watch = Stack(models, device), Watch(device, len(models))
    watch.start(torch.full((len(models),), float(np.log(task.outputs.size)), device=device), options.explode)
    config = TrainingConfig(
        lr=1.0, recurrent_lr=options.recurrent, weight_decay=options.weight_decay, clip=clip,
        warmup=options.warmup / options.steps,
    )  # fmt: skip
    factor, scales = torch.tensor([member.recurrent for member in members], device=device)[:, None], {}
    spectrum = _Spectrum(stack, layers)
    for key, layer, own in layers:
        weight = stack.get_parameter(stacked_name(f"{key}.{own}"))
        even = 1 / mobility(layer.map, weight.detach()) if equal else torch.ones_like(weight)
        scales[f"{key}.{own}"] = factor * even
    optimizer = StackedOptimizer(stack, config, config.rates(options.steps), [m.rate for m in members], scales)
    strategy = Objective(
        _loss(stack, task, options), _batches(data, members, options), stack.parameters(),
        graph=options.graph and device.type == "cuda",
    )  # fmt: skip
    hook = _Seen(watch, spectrum, options.look_every, partial(run.log, name))
    run.train(name, looped(stack, strategy, optimizer, watch, options.steps, hook, options.look_every))
    return {**hook.arrays(), "after": spectrum.eigenvalues().cpu().numpy(), "test": _test(stack, data, options)}


def _batches(data: Task, members: Sequence[Member], options: StackOptions) -> Callable[[int], list[Tensor]]:
    """Return a function that maps a step to a batch of tensors, each with one row per model. Models with the same seed
    read the same text.
    """
    seeds, epoch = sorted({member.seed for member in members}), data.steps("train", options.batch)
    place = torch.tensor([seeds.index(member.seed) for member in members], device=data.device)

    def batch(step: int) -> list[Tensor]:
        pass_, index = divmod(step, epoch)
        batches = [data.batch("train", options.batch, seed=seed, epoch=pass_, index=index) for seed in seeds]
        each = [_tensors(found) for found in batches]
        return [torch.stack(rows)[place] for rows in zip(*each, strict=True)]

    return batch


def _tensors(batch: Batch) -> list[Tensor]:
    """Return the inputs and targets of a batch. If the text consists of several documents, also return a tensor that is
    True at the first token of each document.
    """
    return [tensor for tensor in (batch.inputs, batch.targets, batch.reset) if tensor is not None]


def _loss(stack: Stack, task: Task, options: StackOptions) -> Callable[..., Tensor]:
    def of_one(model: SequenceModel, inputs: Tensor, targets: Tensor, reset: Tensor | None = None) -> Tensor:
        batch = Batch(inputs, targets, reset=reset)
        return task.loss(apply(model, batch, autocast=options.autocast), batch)

    def losses(*tensors: Tensor) -> Tensor:
        found = stack.call(of_one, *tensors)
        assert isinstance(found, Tensor)
        return found

    return losses


@torch.no_grad()
def _test(stack: Stack, data: Task, options: StackOptions) -> np.ndarray:
    """Return the test loss of each model, a mean over at most ``options.scored`` full batches of the test split."""
    split: Split = "test"
    count = min(options.scored, max(1, data.sizes[split] // options.batch - 1))
    many, losses = len(stack.models), _loss(stack, data, options)
    total = torch.zeros(many, dtype=torch.float64, device=data.device)
    for index in range(count):
        tensors = _tensors(data.batch(split, options.batch, index=index))
        total += losses(*(tensor.expand(many, *tensor.shape) for tensor in tensors)).double()
    return np.asarray((total / count).cpu().numpy())


@final
class _Spectrum:
    """Computes eigenvalues and gradient-to-weight ratios from the recurrent weights of a stack of models."""

    def __init__(self, stack: Stack, layers: Sequence[tuple[str, object, str | None]]) -> None:
        self.maps = [layer.map for _, layer, _ in layers]  # type: ignore[attr-defined]
        self.weights = [stack.get_parameter(stacked_name(f"{key}.{own}")) for key, _, own in layers]

    @torch.no_grad()
    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues, (models, layers, states)."""
        return torch.stack([map(w) for map, w in zip(self.maps, self.weights, strict=True)], 1)

    @torch.no_grad()
    def largest(self) -> Tensor:
        """Return the largest |gradient| / |weight| of each model."""
        each = [ratio(torch.zeros_like(w) if w.grad is None else w.grad, w).flatten(1).amax(1) for w in self.weights]
        return torch.stack(each).amax(0)


class _Seen(Hooks):
    """A hook that stores measurements during training: losses, gradient norms, gradient-to-weight ratios, changes of
    time scales, and the steps at which models diverge.
    """

    def __init__(self, watch: Watch, spectrum: _Spectrum, every: int, log: Callable[..., None]) -> None:
        self.watch, self.spectrum, self.every, self.log = watch, spectrum, every, log
        self.before = spectrum.eigenvalues()
        self.diverged = torch.full_like(watch.bad, -1)
        self.rows: dict[str, list[Tensor]] = {"losses": [], "norms": [], "largest": [], "moved": []}

    def computed(self, step: int) -> None:
        if step % self.every == 0:
            gone = (log_timescale(self.spectrum.eigenvalues()) - log_timescale(self.before)).abs()
            self.rows["largest"].append(self.spectrum.largest())
            self.rows["moved"].append(gone.flatten(1).quantile(0.5, dim=1, interpolation="nearest"))

    def clipped(self, step: int) -> None:
        self.diverged = torch.where((self.watch.bad > 0) & (self.diverged < 0), step, self.diverged)

    def looked(self, step: int) -> None:
        seen = self.watch.values()
        self.rows["losses"] += [*torch.from_numpy(seen[:, 0])]
        self.rows["norms"] += [*torch.from_numpy(seen[:, 1])]
        self.log(step=step - 1, losses=seen[-1, 0].tolist())

    def tensors(self) -> dict[str, Tensor]:
        rows = {name: torch.stack(row).cpu() for name, row in self.rows.items() if row}
        return {"before": self.before, "diverged": self.diverged, **rows}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        device = self.watch.bad.device
        self.before, self.diverged = tensors["before"].to(device), tensors["diverged"].to(device)
        self.rows = {name: [*tensors.get(name, ())] for name in self.rows}
        for name in ("largest", "moved"):
            self.rows[name] = [row.to(device) for row in self.rows[name]]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the measurements during training by name: losses, gradient norms, gradient-to-weight ratios, changes
        of time scales, and the steps of divergence.
        """
        found = {name: torch.stack(row).float().cpu().numpy() for name, row in self.rows.items()}
        looks = np.arange(len(found["largest"])) * self.every
        diverged = self.diverged.int().cpu().numpy()
        return {**found, "looks": looks, "before": self.before.cpu().numpy(), "diverged": diverged}

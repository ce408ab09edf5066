"""Trains many small models as one computation, in steps that can be interrupted and resumed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm._tensors import padded
from stablessm.experiments.frame.run import Run
from stablessm.layers import ContinuousRNN, activations
from stablessm.training import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Objective, Strategy
from stablessm.training.optimizer import Optimizer, StackedOptimizer
from stablessm.training.stack import Stack, stacked_name
from stablessm.training.steps import Hooks, StepLoop

M = TypeVar("M", bound=nn.Module)
Batch: TypeAlias = tuple[Tensor, ...]
Loss: TypeAlias = Callable[..., Tensor]
"""A function of a model and the tensors of a batch that returns one number."""
Weights: TypeAlias = dict[str, Tensor]
Observe: TypeAlias = Callable[[Weights, Weights], Tensor]
"""A function of the stacked weights and their gradients that returns a few numbers per model: (models, …)."""


def device_called(name: str) -> torch.device:
    """Return the device with this name; the name ``auto`` means a GPU if there is one, otherwise the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


@dataclass(frozen=True)
class Training:
    """Options for training with Adam. Gradients are clipped separately for each model, and the learning rate decays to
    0 along a cosine.
    """

    samples: int
    """Number of samples per epoch; every epoch has the same batches in the same order."""
    batch: int
    epochs: int
    lr: float = 0.01
    clip: float | None = 0.5
    """Largest norm of a model's gradient; None for no clipping."""
    rows_per_epoch: int = 1
    """Number of losses that are logged per epoch."""
    device: str = "auto"
    """A device, or ``auto``: a GPU if there is one."""
    graphed: bool = False
    """Whether a GPU replays the loss as a CUDA graph, which helps with many small kernels.
    The loss must not read anything from the host."""

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.samples:
            raise ArgumentError("batch", f"from 1 to the {self.samples} samples", self.batch)
        if not 0 < self.rows_per_epoch <= self.batches:
            expected = f"from 1 to the {self.batches} batches of an epoch"
            raise ArgumentError("rows_per_epoch", expected, self.rows_per_epoch)

    @property
    def batches(self) -> int:
        """Return the number of batches per epoch."""
        return self.samples // self.batch

    @property
    def steps(self) -> int:
        """Return the total number of steps."""
        return self.epochs * self.batches

    @property
    def steps_per_row(self) -> int:
        """Return the number of steps over which each logged loss is averaged."""
        return self.batches // self.rows_per_epoch

    def chosen_device(self) -> torch.device:
        """Return the device that the options name for training; ``auto`` means a GPU if there is one."""
        return device_called(self.device)


@final
@dataclass(frozen=True, eq=False)
class Trained(Generic[M]):
    """The result of training several models: the trained models and their losses, on the CPU."""

    models: list[M]
    losses: np.ndarray
    """(rows, models): mean losses."""
    seen: np.ndarray | None
    """(rows, models, …): results of ``observe`` at the first step of each row."""


def train(
    run: Run,
    name: str,
    models: Sequence[M],
    loss: Loss,
    batches: Callable[[int], Batch],
    options: Training,
    *,
    each_its_own: bool = False,
    observe: Observe | None = None,
) -> Trained[M]:
    """Train several models of one class together, as one stage of a run. All parameters are trained. The models may
    differ in their initial weights and in their width.

    Models narrower than the widest model are padded with zero weights to the size of the widest model. The gradients of
    the added weights are zero, so the added weights stay zero.

    Args:
        name: Name of the stage.
        loss: ``loss(model, *batch)``, in operations that ``torch.vmap`` supports.
        batches: ``batches(k)`` returns the tensors of batch number k of an epoch. It must return the same tensors every
            time, because a resumed run calls it again.
        each_its_own: True if the first axis of the tensors of a batch is the model; by default all models get the same
            tensors.
        observe: Function of the weights and gradients of all models, called at regular steps; its results are stored as
            ``Trained.seen``.
    """

    def compute() -> Mapping[str, np.ndarray]:
        device = options.chosen_device()
        stack, watch = Stack(_padded(models), device), Watch(device, len(models), forgiving=True)
        config = TrainingConfig(lr=options.lr, weight_decay=0.0, clip=options.clip, warmup=0.0)
        optimizer = StackedOptimizer(stack, config, config.rates(options.steps))

        def batch(step: int) -> Batch:
            return tuple(tensor.to(device) for tensor in batches(step % options.batches))

        strategy = Objective(
            lambda *tensors: stack.call(loss, *tensors, shared=not each_its_own), batch, stack.parameters(),
            graph=options.graphed and device.type == "cuda",
        )  # fmt: skip
        hook = _Rows(stack, watch, options.steps_per_row, observe, partial(run.log, name))
        run.train(name, looped(stack, strategy, optimizer, watch, options.steps, hook, options.steps_per_row))
        weights = {f"weights.{key}": p.detach().cpu().numpy() for key, p in hook.named.items()}
        return weights | {key: tensor.cpu().numpy() for key, tensor in hook.tensors().items()}

    arrays = run.stage(name, compute)
    return Trained(restored(models, arrays), arrays["losses"], arrays.get("seen"))


def looped(
    trained: nn.Module, strategy: Strategy, optimizer: Optimizer, watch: Watch, total: int, hook: Hooks, every: int
) -> Callable[..., StepLoop]:
    """Return the function that :meth:`.Run.train` calls to build a loop of ``total`` steps. ``hook.looked`` is called
    after every ``every`` steps and at the end. The other arguments are as for :class:`.StepLoop`.
    """

    def look(step: int) -> bool:
        return step % every == 0 or step == total

    return partial(StepLoop, trained, strategy, optimizer, watch, total, [hook], look=look)


def restored(models: Sequence[M], arrays: Mapping[str, np.ndarray]) -> list[M]:
    """Return copies of the models with the trained weights that :func:`train` stored."""
    twins = [copy.deepcopy(model) for model in models]
    for i, twin in enumerate(twins):
        for name, p in twin.named_parameters():
            corner = tuple(slice(size) for size in p.shape)
            p.data = torch.from_numpy(arrays[f"weights.{name}"][i][corner]).to(p).clone()
    return twins


def noise(seed: int, index: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor of white noise of the given shape. The noise depends only on ``seed`` and ``index``, so that a
    resumed loop needs no saved random state.

    >>> torch.equal(noise(0, 3, 2, 5), noise(0, 3, 2, 5)), torch.equal(noise(0, 3, 5), noise(0, 4, 5))
    (True, False)
    """
    words = np.random.SeedSequence([seed, index]).generate_state(2, np.uint32)
    generator = torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))
    return torch.randn(*shape, generator=generator, dtype=dtype)


def noisy(target: Callable[[Tensor], Tensor], training: Training, length: int, seed: int = 0) -> Callable[[int], Batch]:
    """Return a function that maps the index of a batch to a pair: sequences of white noise with ``length`` steps, and
    the outputs of the target for these sequences.
    """

    def batch(index: int) -> Batch:
        x = noise(seed, index, training.batch, length, 1).to(training.chosen_device())
        return x, target(x)

    return batch


def sliced(training: Training, *tensors: Tensor) -> Callable[[int], Batch]:
    """Return a function that maps the index of a batch to the rows of the given tensors that belong to this batch."""
    return lambda index: tuple(tensor[index * training.batch : (index + 1) * training.batch] for tensor in tensors)


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error of a layer on inputs x (B, T, d_input); ``y`` are the correct outputs."""
    return (model(x)[0] - y).square().mean()


@torch.no_grad()
def best_of_seeds(
    models: Sequence[M], widths: Sequence[int], x: Tensor, target: Callable[[Tensor], Tensor]
) -> tuple[dict[int, M], Tensor]:
    """Return the model of each width with the smallest mean square error on the inputs x, and the errors of all models,
    (widths, seeds). ``models`` has the models of all seeds at the first width, then at the second width, and so on.
    """
    errors = torch.stack([mean_square(model, x, target(x)) for model in models]).reshape(len(widths), -1)
    errors = errors.nan_to_num(torch.inf)
    best = errors.argmin(1) + errors.shape[1] * torch.arange(len(widths))
    return {m: models[int(i)] for m, i in zip(widths, best, strict=True)}, errors


def rnn_mean_square(model: ContinuousRNN, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error of a dense RNN on inputs x (B, T, d_input); ``y`` are the correct outputs. The RNN
    is integrated by Euler steps, with operations that a CUDA graph can capture.
    """
    sigma, W = activations.get(model.activation).value, model.recurrent_matrix()
    drive = F.linear(x, model.U, model.bias)
    states = [torch.zeros_like(drive[:, 0])]
    for now in drive.unbind(1):
        states.append(states[-1] + model.dt * sigma(F.linear(states[-1], W) + now))
    return (F.linear(torch.stack(states[1:], 1), model.C) - y).square().mean()


def differentiate(loss: Tensor, model: nn.Module) -> None:
    """Compute the gradient of a loss and store it in the ``grad`` attributes of the model's parameters."""
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        p.grad = gradient


def _padded(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Return copies of the models in which all weights are padded with zeros to the shapes of the widest model."""
    if not models:
        raise ArgumentError("models", "one or more", "none")
    widest = max(models, key=lambda model: sum(p.numel() for p in model.parameters()))
    found = [copy.deepcopy(widest).requires_grad_() for _ in models]
    for twin, model in zip(found, models, strict=True):
        for name, p in twin.named_parameters():
            p.data = padded(model.get_parameter(name).detach(), p.shape)
    return found


class _Rows(Hooks):
    """A hook that averages the losses over intervals of ``every`` steps. At the first step of each interval it calls
    ``observe`` with the weights and gradients.
    """

    def __init__(
        self, stack: Stack, watch: Watch, every: int, observe: Observe | None, log: Callable[..., None]
    ) -> None:
        self.named = {name: stack.get_parameter(stacked_name(name)) for name, _ in stack.models[0].named_parameters()}
        self.watch, self.every, self.observe, self.log = watch, every, observe, log
        self.losses: list[Tensor] = []
        self.seen: list[Tensor] = []

    def computed(self, step: int) -> None:
        if self.observe is not None and step % self.every == 0:
            weights = {name: p.detach() for name, p in self.named.items()}
            gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.named.items()}
            self.seen.append(self.observe(weights, gradients))

    def looked(self, step: int) -> None:
        self.losses.append(torch.from_numpy(self.watch.values()[:, 0].mean(0)))
        self.log(step=step - 1, losses=self.losses[-1].tolist())

    def tensors(self) -> dict[str, Tensor]:
        rows = {"losses": self.losses, "seen": self.seen}
        return {name: torch.stack(row) for name, row in rows.items() if row}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        device = self.watch.bad.device
        self.losses, self.seen = [*tensors.get("losses", ())], [t.to(device) for t in tensors.get("seen", ())]

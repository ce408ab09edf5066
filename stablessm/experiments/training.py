"""Many small models trained as one computation, in steps that can be killed and gone on with."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.experiments.run import Run
from stablessm.instruments import PerturbationFamily
from stablessm.instruments.family import MARGIN
from stablessm.layers import ContinuousRNN, activations

M = TypeVar("M", bound=nn.Module)
Batch: TypeAlias = tuple[Tensor, ...]
Loss: TypeAlias = Callable[..., Tensor]
"""From a model and what is in a batch to one number."""
Weights: TypeAlias = dict[str, Tensor]
Observe: TypeAlias = Callable[[Weights, Weights], Tensor]
"""From the stacked weights and their gradients, as they come, to a few numbers for each model: (models, …)."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def device_called(name: str) -> torch.device:
    """The device of that name; ``auto``: a GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


@dataclass(frozen=True)
class Training:
    """Adam; gradients clipped model by model; the learning rate falls to 0 along a cosine."""

    samples: int
    """In one epoch, which sees the same batches in the same order every time."""
    batch: int
    epochs: int
    lr: float = 0.01
    clip: float = 0.5
    rows_per_epoch: int = 1
    """How often losses are noted."""
    device: str = "auto"
    """``auto``: a GPU if there is one."""
    graphed: bool = False
    """Whether a GPU replays the loss as a CUDA graph: for many small kernels, which take longer to launch than to run.
    Nothing in the loss may come from the host."""

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.samples:
            raise ArgumentError("batch", f"from 1 to the {self.samples} samples", self.batch)
        if not 0 < self.rows_per_epoch <= self.batches:
            expected = f"from 1 to the {self.batches} batches of an epoch"
            raise ArgumentError("rows_per_epoch", expected, self.rows_per_epoch)

    @property
    def batches(self) -> int:
        """In one epoch."""
        return self.samples // self.batch

    @property
    def steps(self) -> int:
        """In all."""
        return self.epochs * self.batches

    @property
    def steps_per_row(self) -> int:
        """Over which losses are averaged."""
        return self.batches // self.rows_per_epoch

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.lr * (1 + math.cos(math.pi * step / self.steps)) / 2

    def chosen_device(self) -> torch.device:
        """Where to train."""
        return device_called(self.device)


@final
@dataclass(frozen=True, eq=False)
class Trained(Generic[M]):
    """What came out, on the CPU."""

    models: list[M]
    losses: np.ndarray
    """(rows, models): means over as many steps."""
    seen: np.ndarray | None
    """(rows, models, …) what ``observe`` said at the first of these steps."""


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
    """Train models of one class that differ in their weights and width, as a stage of a run.

    Narrow models are padded with units that nothing reaches and that reach nothing: all weights 0. These have zero
    gradients, and so stay.

    Args:
        name: of the stage.
        loss: ``loss(model, *batch)``, in operations that ``torch.vmap`` knows.
        batches: from the number of a batch in its epoch to its tensors, the same whenever it is asked: a resumed run
            draws them again.
        each_its_own: whether the tensors of a batch have a first axis of models; otherwise all see the same.
    """
    arrays = run.stage(name, lambda: _train(run, name, models, loss, batches, options, each_its_own, observe))
    return Trained(restored(models, arrays), arrays["losses"], arrays.get("seen"))


def restored(models: Sequence[M], arrays: Mapping[str, np.ndarray]) -> list[M]:
    """The models with the weights that ``train`` left in the arrays of its stage."""
    twins = [copy.deepcopy(model) for model in models]
    for i, twin in enumerate(twins):
        for name, p in twin.named_parameters():
            corner = tuple(slice(size) for size in p.shape)
            p.data = torch.from_numpy(arrays[f"weights.{name}"][i][corner]).to(p).clone()
    return twins


def noise(seed: int, index: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """White noise that depends on ``seed`` and ``index`` alone, so that no random state has to be kept.

    >>> torch.equal(noise(0, 3, 2, 5), noise(0, 3, 2, 5)), torch.equal(noise(0, 3, 5), noise(0, 4, 5))
    (True, False)
    """
    words = np.random.SeedSequence([seed, index]).generate_state(2, np.uint32)
    generator = torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))
    return torch.randn(*shape, generator=generator, dtype=dtype)


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a layer on inputs x (B, T, d_input) whose outputs should be y."""
    return (model(x)[0] - y).square().mean()


def rnn_mean_square(model: ContinuousRNN, x: Tensor, y: Tensor) -> Tensor:
    """``mean_square`` of a dense RNN in Euler steps: the same numbers in operations that a CUDA graph can hold."""
    sigma, W, drive = (
        activations.get(model.activation).value,
        model.recurrent_matrix(),
        F.linear(x, model.U, model.bias),
    )
    states = [torch.zeros_like(drive[:, 0])]
    for now in drive.unbind(1):
        states.append(states[-1] + model.dt * sigma(F.linear(states[-1], W) + now))
    return (F.linear(torch.stack(states[1:], 1), model.C) - y).square().mean()


def improving(family: PerturbationFamily) -> PerturbationFamily:
    """The first widths, as long as each model is better than all narrower ones.

    Where a wider model is no better it is the optimiser that limits it, and its error says nothing about the width.
    """
    best, kept = np.inf, {}
    for (width, curve), error in zip(family.curves.items(), family.errors[:, 0], strict=True):
        if not error < (1 - MARGIN) * best:
            break
        best, kept[width] = error, curve
    return PerturbationFamily(kept) if kept else family


class _Objective(nn.Module):
    """``functional_call`` calls modules; this one answers with the loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *batch)


def _stacked_loss(objective: _Objective, names: Sequence[str], axes: tuple[int | None, ...]) -> Loss:
    """From the stacked weights, in the order of ``names``, and a batch to the loss of each model."""

    def one(own: tuple[Tensor, ...], *batch: Tensor) -> Tensor:
        named = {f"model.{name}": w for name, w in zip(names, own, strict=True)}
        value: Tensor = functional_call(objective, named, batch)
        return value

    def all_of_them(*tensors: Tensor) -> Tensor:
        return torch.vmap(one, in_dims=(0, *axes))(tensors[: len(names)], *tensors[len(names) :])

    return all_of_them


def _stacked(models: Sequence[nn.Module], device: torch.device) -> tuple[nn.Module, Weights]:
    """The widest model, and the weights of all of them padded to its shapes: (models, …) each."""
    if not models:
        raise ArgumentError("models", "one or more", "none")
    widest = max(models, key=lambda model: sum(p.numel() for p in model.parameters()))
    weights = {}
    for name, like in widest.named_parameters():
        mine = [model.get_parameter(name).detach() for model in models]
        gaps = [[n - m for n, m in zip(like.shape, p.shape, strict=True)] for p in mine]
        padded = [F.pad(p, [s for gap in reversed(g) for s in (0, gap)]) for p, g in zip(mine, gaps, strict=True)]
        weights[name] = torch.stack(padded).to(device)
    return copy.deepcopy(widest).to(device), weights


def _train(
    run: Run,
    name: str,
    models: Sequence[nn.Module],
    loss: Loss,
    batches: Callable[[int], Batch],
    options: Training,
    each_its_own: bool,
    observe: Observe | None,
) -> Mapping[str, np.ndarray]:
    device = options.chosen_device()
    template, weights = _stacked(models, device)
    first, second = ({key: torch.zeros_like(w) for key, w in weights.items()} for _ in range(2))
    rows = -(-options.steps // options.steps_per_row)
    losses = torch.zeros(rows, len(models), dtype=torch.float64, device=device)
    seen: list[Tensor] = []

    sample = tuple(tensor.to(device).clone() for tensor in batches(0))  # a graph keeps them and writes into them
    stacked = _stacked_loss(_Objective(template, loss), list(weights), (0 if each_its_own else None,) * len(sample))
    if device.type == "cuda" and options.graphed:
        leaves = tuple(w.clone().requires_grad_() for w in weights.values())
        stacked = cast(Loss, torch.cuda.make_graphed_callables(stacked, (*leaves, *sample), allow_unused_input=True))

    def gradients(batch: Batch) -> tuple[Tensor, Weights]:
        leaves = [w.detach().requires_grad_() for w in weights.values()]
        values = stacked(*leaves, *batch)
        found = torch.autograd.grad(values.sum(), leaves, materialize_grads=True)
        return values.detach(), dict(zip(weights, found, strict=True))

    def save() -> dict[str, np.ndarray]:
        groups = {"weights": weights, "first": first, "second": second}
        arrays = {f"{group}.{key}": w for group, held in groups.items() for key, w in held.items()} | {"losses": losses}
        kept = arrays | ({"seen": torch.stack(seen)} if seen else {})
        return {key: tensor.cpu().numpy() for key, tensor in kept.items()}

    def restore(arrays: Mapping[str, np.ndarray]) -> None:
        for group, held in (("weights", weights), ("first", first), ("second", second)):
            held.update({key: torch.from_numpy(arrays[f"{group}.{key}"]).to(device) for key in held})
        losses.copy_(torch.from_numpy(arrays["losses"]))
        seen.extend(torch.from_numpy(arrays["seen"]).to(device) if "seen" in arrays else [])

    for step in run.loop(name, options.steps, save, restore):
        row, place = divmod(step, options.steps_per_row)
        values, found = gradients(tuple(tensor.to(device) for tensor in batches(step % options.batches)))
        losses[row] += values / min(options.steps_per_row, options.steps - row * options.steps_per_row)
        if observe is not None and place == 0:
            seen.append(observe(weights, found))
        _adam(weights, first, second, _clipped(found, options.clip), options.rate(step), step + 1)
        if place == options.steps_per_row - 1 or step == options.steps - 1:
            run.log(name, step=step, losses=losses[row].tolist())
    return {key: array for key, array in save().items() if not key.startswith(("first.", "second."))}


def _clipped(gradients: Weights, most: float) -> Weights:
    """Each model's gradient shortened to the norm ``most``; one that is not finite is left out."""
    norm = sum(g.flatten(1).square().sum(1) for g in gradients.values())
    scale = (most / (torch.as_tensor(norm).sqrt() + 1e-6)).clamp(max=1.0)
    usable = scale > 0  # neither infinite nor NaN
    return {
        key: torch.where(_over(usable, g), g * _over(scale, g), torch.zeros_like(g)) for key, g in gradients.items()
    }


def _over(factor: Tensor, like: Tensor) -> Tensor:
    return factor.reshape(-1, *(1,) * (like.dim() - 1)).to(like.dtype if factor.is_floating_point() else factor.dtype)


def _adam(weights: Weights, first: Weights, second: Weights, gradients: Weights, lr: float, count: int) -> None:
    (b1, b2), eps = _BETAS, _EPSILON
    for key, g in gradients.items():
        first[key] = first[key].lerp(g, 1 - b1)
        second[key] = b2 * second[key] + (1 - b2) * g * g
        root = (second[key] / (1 - b2**count)).sqrt() + eps
        weights[key] = weights[key] - lr / (1 - b1**count) * first[key] / root

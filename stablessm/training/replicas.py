"""Several models of one shape, each with its own seed, trained as one computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stablessm._errors import ArgumentError
from stablessm.instruments import GradientOverWeight
from stablessm.tasks.base import Batch
from stablessm.training.divergence import Watch
from stablessm.training.evaluate import apply
from stablessm.training.gradient import Gradient, Strategy, descend
from stablessm.training.stack import Stack, stacked_name
from stablessm.training.trainee import Trainee

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@final
class Replica(Trainee):
    """One model of a stack."""

    def __init__(self, stack: Stack, number: int) -> None:
        self.stack, self.number = stack, number
        self.model = self.trained = self.runner = stack.models[number]

    def ratios(self) -> GradientOverWeight:
        """From the rows of the stack's gradients."""
        for name, parameter in self.model.named_parameters():
            gradient = self.stack.get_parameter(stacked_name(name)).grad
            parameter.grad = None if gradient is None else gradient[self.number]
        found = super().ratios()
        self.model.zero_grad()
        return found


@final
class Replicas(Strategy):
    """The gradient of every model on its own batch, by ``torch.vmap``.

    Batches and dropout of a model are those of a training of this model alone. Other random numbers that a model draws
    are the same for all models.

    Args:
        each: the gradient of each model alone, with its own seed.
        watch: is told the normal loss of each model, at step 0.
    """

    def __init__(self, stack: Stack, each: Sequence[Gradient], watch: Watch) -> None:
        self.stack, self.each, self.watch = stack, each, watch
        self.config, self.task = each[0].config, each[0].task

    def compute(self, step: int) -> Tensor:
        """The gradients in the stack; the losses (replicas,)."""
        streams = _Streams([self._state(gradient, step) for gradient in self.each], self.task.device)
        total = torch.zeros(len(self.each), device=self.task.device)
        for i in range(self.config.accumulate):
            names, tensors = _together([gradient.batch(step, i) for gradient in self.each])

            def losses(model: nn.Module, number: Tensor, *own: Tensor) -> tuple[Tensor, Tensor]:
                batch = Batch(**dict(zip(names, own, strict=True)))  # noqa: B023 (called at once)
                with streams.of(number):
                    output = apply(model, batch, autocast=self.config.autocast)
                return self.task.loss(output, batch), self.task.loss(torch.zeros_like(output), batch)

            numbers = torch.arange(len(self.each), device=self.task.device)
            try:
                loss, silent = self.stack.call(losses, numbers, *tensors)
            except RuntimeError as error:
                expected = "1, or a model and a loss that torch.vmap can run"
                raise ArgumentError("replicas", expected, f"{len(self.each)} ({error})") from error
            total = total + descend(loss / self.config.accumulate)
            if step == 0 and i == 0:
                self.watch.start(torch.maximum(loss, silent).detach(), self.config.explode)
        return total

    def _state(self, gradient: Gradient, step: int) -> Tensor:
        gradient.seed(step)
        return random_state(self.task.device)


@final
class _Streams(TorchFunctionMode):
    """Dropout under ``torch.vmap`` as each model would draw it alone: from its own random state.

    Args:
        states: torch's random state of each model.
    """

    def __init__(self, states: Sequence[Tensor], device: torch.device) -> None:
        super().__init__()
        self.states, self.device, self.number = list(states), device, torch.zeros(())

    def of(self, number: Tensor) -> _Streams:
        """Within, dropout is that of model ``number``, a tensor that ``torch.vmap`` maps over."""
        self.number = number
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; a dropout with a mask for each model."""
        if func not in _DROPOUTS:
            return func(*args, **(kwargs or {}))
        return self._dropped(func, *args, **(kwargs or {}))

    def _dropped(
        self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        masks = []
        for i, state in enumerate(self.states):
            set_random_state(state, self.device)
            masks.append(func(torch.ones(input.shape, dtype=input.dtype, device=self.device), p, True))
            self.states[i] = random_state(self.device)
        return input * torch.stack(masks).index_select(0, self.number[None])[0]


def random_state(device: torch.device) -> Tensor:
    """Of torch's own generator for a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Of torch's own generator for a device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _together(batches: Sequence[Batch]) -> tuple[list[str], list[Tensor]]:
    """The tensors of batches, (replicas, …) by name; padded ones as long as the longest."""
    names = [name for name, value in vars(batches[0]).items() if value is not None]
    short = [max(b.inputs.shape[1] for b in batches) - batch.inputs.shape[1] for batch in batches]
    found = []
    for name in names:
        each = [getattr(batch, name) for batch in batches]
        timed = batches[0].lengths is not None and each[0].shape[1:2] == batches[0].inputs.shape[1:2]
        found.append(torch.stack([_longer(*pair) for pair in zip(each, short, strict=True)] if timed else each))
    return names, found


def _longer(tensor: Tensor, steps: int) -> Tensor:
    """So many steps of zeros at the end of (B, T, …)."""
    return F.pad(tensor, [*(0, 0) * (tensor.dim() - 2), 0, steps])

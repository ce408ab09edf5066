"""Training of several models of the same shape, each with its own seed, as one computation (replicas)."""

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
from stablessm.training.gradient import Gradient, Strategy, count_of, descend, part_of_loss
from stablessm.training.stack import Stack, stacked_name
from stablessm.training.trainee import Trainee

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@final
class Replica(Trainee):
    """One of several models that are trained together in a :class:`~stablessm.training.stack.Stack`, with the same
    interface as a model that is trained alone.
    """

    def __init__(self, stack: Stack, number: int) -> None:
        self.stack, self.number = stack, number
        self.model = self.trained = self.runner = stack.models[number]

    def ratios(self) -> GradientOverWeight:
        """Return the gradient-over-weight ratios of this model, from its rows of the gradients of the stack."""
        for name, parameter in self.model.named_parameters():
            gradient = self.stack.get_parameter(stacked_name(name)).grad
            parameter.grad = None if gradient is None else gradient[self.number]
        found = super().ratios()
        self.model.zero_grad()
        return found


@final
class Replicas(Strategy):
    """The strategy for several models: it computes the gradient of every model on the model's own batch, with
    ``torch.vmap``.

    Each model has the same batches and dropout masks as if it were trained alone. Other random numbers are shared by
    all models.

    Args:
        stack: The models to train.
        each: For each model, the strategy that would train it alone, with the seed of this model.
        watch: Detector of divergence, which receives the initial loss of each model at step 0.
    """

    def __init__(self, stack: Stack, each: Sequence[Gradient], watch: Watch) -> None:
        self.stack, self.each, self.watch = stack, each, watch
        self.config, self.task = each[0].config, each[0].task

    def compute(self, step: int) -> Tensor:
        """Compute the gradients of all models, and store them in ``grad`` of the stack's parameters; return the mean
        loss of each model, (replicas,).
        """
        streams, device = _Streams(self.each, step, self.task.device), self.task.device
        total, numbers = torch.zeros(len(self.each), device=device), torch.arange(len(self.each), device=device)
        accumulate, silent = range(self.config.accumulate), torch.zeros_like(total)
        batches = [[gradient.batch(step, i) for i in accumulate] for gradient in self.each]
        counts = torch.stack([count_of(self.task, own) for own in batches])
        for i in accumulate:
            names, tensors = _together([own[i] for own in batches])

            def losses(model: nn.Module, number: Tensor, count: Tensor, *own: Tensor) -> tuple[Tensor, Tensor]:
                batch = Batch(**dict(zip(names, own, strict=True)))  # noqa: B023 (called at once)
                with streams.of(number):
                    output = apply(model, batch, autocast=self.config.autocast)
                of_step = None if len(accumulate) == 1 else count
                found = (part_of_loss(self.task, each, batch, of_step) for each in (output, torch.zeros_like(output)))
                return tuple(found)  # type: ignore[return-value]

            try:
                loss, of_zeros = self.stack.call(losses, numbers, counts, *tensors)
            except RuntimeError as error:
                expected = "1, or a model and a loss that torch.vmap can run"
                raise ArgumentError("replicas", expected, f"{len(self.each)} ({error})") from error
            total, silent = total + descend(loss), silent + of_zeros.detach()
        if step == 0:
            self.watch.start(torch.maximum(total, silent), self.config.explode)
        return total


@final
class _Streams(TorchFunctionMode):
    """A function mode for ``torch.vmap`` over models, in which each model draws its dropout masks from its own random
    state.

    Args:
        each: For each model, the strategy that would train it alone; its method ``seed`` sets the random state of a
            step.
        step: Number of the step.
        device: Device of the models.
    """

    def __init__(self, each: Sequence[Gradient], step: int, device: torch.device) -> None:
        super().__init__()
        gpu = device.type == "cuda" and (torch.cuda.current_device() if device.index is None else device.index)
        self.generator = torch.default_generator if gpu is False else torch.cuda.default_generators[gpu]
        self.states, self.device, self.number = list[Tensor](), device, torch.zeros(())
        for gradient in each:
            gradient.seed(step)
            self.states.append(self.generator.get_state())

    def of(self, number: Tensor) -> _Streams:
        """Return a context in which dropout draws the masks of model ``number``, a tensor over which
        ``torch.vmap`` maps.
        """
        self.number = number
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; if ``func`` is a dropout function, apply it with a separate mask for each model."""
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
            self.generator.set_state(state)
            masks.append(func(torch.ones(input.shape, dtype=input.dtype, device=self.device), p, True))
            self.states[i] = self.generator.get_state()
        return input * torch.stack(masks).index_select(0, self.number[None])[0]


def _together(batches: Sequence[Batch]) -> tuple[list[str], list[Tensor]]:
    """Stack the batches of all replicas, padded to equal length; return the names of the fields of :class:`Batch` that
    are set, and their stacked tensors (replicas, …).
    """
    names = [name for name, value in vars(batches[0]).items() if value is not None]
    longest, found = max(batch.inputs.shape[1] for batch in batches), []
    for name in names:
        each = [getattr(batch, name) for batch in batches]
        if batches[0].lengths is not None and each[0].shape[1:2] == batches[0].inputs.shape[1:2]:  # (B, T, …)
            each = [F.pad(t, [*(0, 0) * (t.dim() - 2), 0, longest - t.shape[1]]) for t in each]
        found.append(torch.stack(each))
    return names, found

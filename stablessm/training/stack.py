"""Several models of the same shape whose weights are stacked, so that they run as one computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stablessm._errors import ArgumentError


@final
class Stack(nn.Module):
    """A module of several models that differ only in their weights, which are rows of stacked tensors (models, …).

    The parameters and buffers of the models become views of these rows. A change of the stack therefore changes the
    models, which can be saved, evaluated and searched for a divergence one by one.

    >>> models = [nn.Linear(3, 2) for _ in range(4)]
    >>> stack, x = Stack(models, torch.device("cpu")), torch.randn(5, 3)
    >>> y = stack.call(lambda model, x: model(x), x, shared=True)
    >>> y.shape, torch.allclose(y[2], models[2](x), atol=1e-6)
    (torch.Size([4, 5, 2]), True)
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        super().__init__()
        if not models:
            raise ArgumentError("models", "one or more", "none")
        shapes = [{name: (t.shape, t.dtype) for name, t in _tensors(model)} for model in models]
        if any(own != shapes[0] for own in shapes):
            raise ArgumentError("models", "parameters and buffers of the same names, shapes and dtypes", "others")
        object.__setattr__(self, "models", [model.to(device) for model in models])  # no submodules: they own no weights
        for each in zip(*(_tensors(model) for model in models), strict=True):
            name, first = each[0]
            rows = torch.stack([tensor.detach() for _, tensor in each])
            if isinstance(first, nn.Parameter):
                self.register_parameter(stacked_name(name), nn.Parameter(rows, first.requires_grad))
            else:
                self.register_buffer(stacked_name(name), rows)
            for row, (_, tensor) in zip(rows, each, strict=True):
                tensor.data = row

    models: list[nn.Module]

    def call(self, function: Callable[..., Any], *tensors: Tensor, shared: bool = False) -> Any:
        """Call ``function(model, *tensors)`` for every model with ``torch.vmap``; results have a first axis of models.

        Args:
            function: Function of a model and tensors.
            tensors: Tensors with a first axis of models.
            shared: Whether the tensors are the same for all models and do not have an axis of models.
        """
        one, names = _Call(self.models[0], function), [name for name, _ in _tensors(self.models[0])]

        def of_one(own: tuple[Tensor, ...], *given: Tensor) -> Any:
            return functional_call(one, {f"model.{name}": t for name, t in zip(names, own, strict=True)}, given)

        axes = (0, *(None if shared else 0 for _ in tensors))
        weights = tuple(tensor for _, tensor in _tensors(self))
        return torch.vmap(of_one, axes, randomness="same")(weights, *tensors)


class _Call(nn.Module):
    """A module whose forward pass calls a function of a model, because ``functional_call`` accepts only modules."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(self.model, *tensors)


def stacked_name(name: str) -> str:
    """Convert the name of a parameter or buffer to its name in a stack, where PyTorch does not allow dots."""
    return name.replace(".", "/")


def over(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per model, (models,), so that it broadcasts against a stacked tensor ``like``."""
    return values.to(like.dtype).view(-1, *(1,) * (like.dim() - 1))


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the named parameters (tied parameters once) and buffers of a model."""
    return [*model.named_parameters(), *model.named_buffers()]

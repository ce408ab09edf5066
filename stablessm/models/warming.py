"""Compiles the kernels of a model before its first use, by running the model on example inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stablessm._arguments import MOST
from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted
from stablessm.instruments.adapters.facts import evaluating, weight_of
from stablessm.layers.states import tensors


@checked
def warm_up(model: nn.Module, shapes: Sequence[Any]) -> None:
    """Run a model forward, backward and for one step, for each input shape, so that all kernels are compiled.

    The kernels of an operation are compiled in parallel. The weights, their gradients, the mode of the model and the
    global random state do not change.

    Args:
        model: a layer or model of stablessm, or any module that is called with one tensor.
        shapes: a shape (B, T, d_input), or (B, T) for tokens, or several shapes.

    >>> import stablessm as ssm
    >>> ssm.warm_up(ssm.S4D(16), (4, 100, 16))
    """
    for shape in _each(shapes):
        x = _input(model, shape)
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices), evaluating(model), torch.enable_grad():
            found: Any = model(x)
            found = getattr(found, "logits", found)  # of a Hugging Face model
            outputs = [output for output in tensors(found) if output.requires_grad]
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            inputs = [value for value in (x, *trained) if value.requires_grad]
            if outputs and inputs:
                torch.autograd.grad(
                    [output.real.sum() for output in outputs if output.numel()], inputs, allow_unused=True
                )
        step: Any = getattr(model, "step", None)
        if step is not None and x.dim() >= 2 and x.shape[1]:
            with torch.no_grad(), evaluating(model):
                _, state = step(x[:, 0].detach())
                step(x[:, 0].detach(), state)


def _each(shapes: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yield every shape, whether ``shapes`` is a single shape or a sequence of shapes."""
    expected = "a shape such as (8, 1024, 64), of positive whole numbers, or several shapes"
    if not isinstance(shapes, Sequence) or isinstance(shapes, str) or not shapes:
        raise ArgumentError("shapes", expected, quoted(shapes))
    single = all(isinstance(size, int) and not isinstance(size, bool) for size in shapes)
    for shape in [shapes] if single else shapes:
        if (
            not isinstance(shape, Sequence)
            or not shape
            or not all(isinstance(size, int) and 0 < size < MOST for size in shape)
        ):
            raise ArgumentError("shapes", expected, quoted(shape))
        yield tuple(shape)


def _input(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return an example input: tokens if the model has a vocabulary and the shape two dimensions, otherwise numbers."""
    like = weight_of(model)
    device = torch.device("cpu") if like is None else like.device
    if len(shape) == 2 and getattr(getattr(model, "config", None), "vocab_size", None) is not None:
        return torch.zeros(shape, dtype=torch.int64, device=device)
    dtype = torch.float32 if like is None else like.dtype
    return torch.ones(shape, dtype=dtype, device=device, requires_grad=True)

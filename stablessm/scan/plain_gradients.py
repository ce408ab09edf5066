"""Gradients of a fused operation, computed by autograd from the same operation written in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def plain_gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients with respect to the inputs of which ``needed`` is True, and None for the others.

    The result can be differentiated again if gradients are enabled, as they are with ``create_graph``.

    Args:
        function: the operation, in PyTorch operations.
        inputs: the arguments of the function, as saved by the forward pass.
        needed: whether the gradient of each input is required.
        gradients: the gradients of the outputs of the function.

    >>> x, y = torch.tensor(3.0, requires_grad=True), torch.tensor(5.0)
    >>> plain_gradients(lambda x, y: (x * y,), (x, y), (True, False), (torch.tensor(1.0),))
    (tensor(5.), None)
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        outputs = function(*inputs)
    wanted = {i: x for i, (x, need) in enumerate(zip(inputs, needed, strict=True)) if x is not None and need}
    varying = [(y, d.to(y.dtype)) for y, d in zip(outputs, gradients, strict=True) if y.requires_grad]
    ends, slopes = zip(*varying, strict=True)
    found = torch.autograd.grad(ends, [*wanted.values()], slopes, create_graph=again, allow_unused=True)
    by_place = dict(zip(wanted, found, strict=True))
    return tuple(by_place.get(i) for i in range(len(inputs)))

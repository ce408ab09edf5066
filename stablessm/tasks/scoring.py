"""Losses and metrics as sums over positions, so that means over a split do not depend on the batch size. Also computes
the metric of the best constant prediction.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from stablessm._errors import ArgumentError

Metric: TypeAlias = Literal["accuracy", "mse", "mae", "nats"]
"""Name of a metric; ``nats`` is the cross-entropy of classes."""


def total_loss(
    kind: Literal["classes", "values"], output: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the loss over all positions, and the sum of the weights.

    The loss of a position is the cross-entropy for classes and the mean squared error for values.

    Args:
        output: Outputs of a model (..., size).
        targets: Classes (...) or values (..., size).
        weights: Weights of the positions (...); with None, all weights are 1.

    >>> total, count = total_loss("classes", torch.zeros(3, 4), torch.tensor([0, 1, 2]), None)
    >>> round((total / count).exp().item(), 6), count.item()
    (4.0, 3.0)
    """
    each = _cross_entropy(output, targets) if kind == "classes" else (output - targets).square().mean(-1)
    return _weighted(each, weights)


def score(metric: Metric, output: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum of a metric over all positions, and the sum of the weights, in float64.

    The arguments are the same as for :func:`total_loss`.

    >>> output = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> [part.item() for part in score("accuracy", output, torch.tensor([1, 1, 1]), torch.tensor([1.0, 1.0, 0.0]))]
    [1.0, 2.0]
    """
    if metric == "accuracy":
        each = (output.argmax(-1) == targets).double()
    elif metric == "nats":
        each = _cross_entropy(output, targets).double()
    else:
        error = output.double() - targets.double()
        each = (error.square() if metric == "mse" else error.abs()).mean(-1)
    return _weighted(each, weights)


def best_constant(metric: Metric, targets: Tensor) -> float:
    """Return the metric of the best constant prediction of the given targets.

    The best constant is the most frequent class (accuracy), the mean (mse) or the median (mae) of each value, or the
    frequencies of the classes (nats).

    Args:
        targets: (n,) classes, or (n, size) values.

    >>> best_constant("accuracy", torch.tensor([2, 0, 2, 2]))
    0.75
    >>> best_constant("mse", torch.tensor([[0.0], [2.0]])), best_constant("mae", torch.tensor([[0.0], [2.0], [9.0]]))
    (1.0, 3.0)
    >>> round(best_constant("nats", torch.tensor([0, 1])), 6)  # log 2
    0.693147
    """
    if not len(targets):
        raise ArgumentError("targets", "at least one target to compute the score of chance", "none")
    targets = targets.cpu()
    if metric in ("nats", "accuracy"):
        shares = torch.bincount(targets.flatten()).double() / targets.numel()
        return (torch.special.entr(shares).sum() if metric == "nats" else shares.max()).item()
    values = targets.double()
    if metric == "mse":
        return (values - values.mean(0)).square().mean().item()
    return (values - values.median(0).values).abs().mean().item()


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


def _weighted(each: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    if weights is None:
        return each.sum(), each.new_full((), each.numel())  # created on the device, without a copy from the host
    weights = weights.to(each.dtype)
    return (each * weights).sum(), weights.sum()

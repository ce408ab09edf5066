"""What the best guess that does not look at the input gets, from the targets."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.tasks.scoring import Metric


def best_constant(metric: Metric, targets: Tensor) -> float:
    """The metric of the best constant answer: the largest class, the mean (mse) or the median (mae) of each value, or
    the frequency of each class (nats).

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
        raise ArgumentError("targets", "at least one to take the chance score of", "none")
    targets = targets.cpu()
    if metric == "nats":
        counts = torch.bincount(targets.flatten()).double()
        return torch.special.entr(counts / targets.numel()).sum().item()
    if metric == "accuracy":
        return torch.bincount(targets.flatten()).max().item() / targets.numel()
    values = targets.double()
    if metric == "mse":
        return (values - values.mean(0)).square().mean().item()
    return (values - values.median(0).values).abs().mean().item()

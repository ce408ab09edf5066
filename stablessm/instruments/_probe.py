"""Linear probes: ridge regression from features to targets, with held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

_STRENGTHS = tuple(10.0**power for power in range(-13, 4))
"""Ridge parameters, relative to the mean variance of a feature."""


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """A data set for a probe: features (n, F) and targets (n, K), float64."""

    features: Tensor
    targets: Tensor


def predictions(train: Samples, validation: Samples, test: Samples, groups: int) -> Tensor:
    """Fit a probe on ``train`` and return its predictions (n, K) for ``test``.

    The K targets are divided, in order, into ``groups`` groups of equal size. Each group has its own ridge parameter,
    the one with the best predictions for ``validation``. The candidates include an infinite parameter, which predicts
    the mean.
    """
    mean, middle = train.features.mean(0), train.targets.mean(0)
    scale = train.features.std(0)
    scale = torch.where(scale > 1e-13 * mean.abs(), scale, torch.inf)  # a constant says nothing

    def standard(samples: Samples) -> Tensor:
        return (samples.features - mean) / scale

    x, y = standard(train), train.targets - middle
    variances, directions = torch.linalg.eigh(x.mT @ x / len(x))
    projected = directions.mT @ (x.mT @ y) / len(x)
    held_out, wanted = standard(validation) @ directions, validation.targets - middle
    size = float(variances.mean()) or 1.0
    best = torch.zeros_like(projected)
    least = _errors(wanted, groups)  # predicting the mean
    for strength in _STRENGTHS:
        weights = projected / (variances.clamp(min=0) + strength * size)[:, None]
        error = _errors(wanted - held_out @ weights, groups)
        better = (error < least).repeat_interleave(y.shape[1] // groups)
        best = torch.where(better, weights, best)
        least = torch.minimum(error, least)
    return (standard(test) @ directions) @ best + middle


def _errors(difference: Tensor, groups: int) -> Tensor:
    return difference.square().sum(0).reshape(groups, -1).sum(1)


def explained(targets: Tensor, predicted: Tensor, groups: int) -> Tensor:
    """Return the explained variance 1 - |y - ŷ|² / |y - mean|² of each group of targets, at least 0.

    The explained variance is 0 if the targets do not vary.
    """
    total = _errors(targets - targets.mean(0), groups)
    error = _errors(targets - predicted, groups)
    return torch.where(total > 0, 1 - error / total.clamp(min=torch.finfo(total.dtype).tiny), 0).clamp(min=0)


def new_explained(targets: Tensor, predicted: Tensor) -> Tensor:
    """Return the explained variance (K,) of the part of each target that the previous targets do not determine.

    The sum of all values is at most the number F of features, if the predictions are linear in the features. (Let q_i
    be the orthonormalized targets, and P the projection onto the span of the centered features. The value of target i
    is at most |P q_i|².)
    """
    centered, middle = targets - targets.mean(0), targets.mean(0)
    size = torch.linalg.qr(centered)[1].diagonal().abs()
    fresh = size > 1e-9 * size.max()  # the others are sums of those before
    q, r = torch.linalg.qr(centered[:, fresh])
    parts = torch.linalg.solve_triangular(r, (predicted - middle)[:, fresh], upper=True, left=False)
    result = torch.zeros_like(size)
    result[fresh] = (1 - (q - parts).square().sum(0)).clamp(min=0)
    return result

"""Trains one classifier, in steps that can be interrupted and resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Run
from stablessm.experiments.frame.training import device_called, looped
from stablessm.experiments.iat.sentiment_models import Classifier
from stablessm.tasks.corpus import Corpus, Reviews
from stablessm.training import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.evaluate import evaluation_mode
from stablessm.training.gradient import Objective
from stablessm.training.optimizer import Optimizer
from stablessm.training.steps import Hooks

C = TypeVar("C", bound=Classifier)

_POOL = 32
"""Number of batches whose reviews are sorted by length together, so that the reviews of a batch have similar
lengths."""


@dataclass(frozen=True)
class Fitting:
    """Options of AdamW with gradient clipping and a learning rate that rises linearly, then falls linearly to 0."""

    epochs: int
    batch: int
    lr: float
    warm_up: float = 0.05
    """Fraction of the steps over which the learning rate rises."""
    weight_decay: float = 0.0
    clip: float = 1.0
    device: str = "auto"
    """A device, or ``auto``: a GPU if there is one."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"fitting.{name}", "a positive number", getattr(self, name))

    def factor(self, step: int, steps: int) -> float:
        """Return the factor by which the learning rate is multiplied at a step.

        >>> options = Fitting(epochs=1, batch=1, lr=1.0, warm_up=0.25)
        >>> [round(options.factor(step, 8), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
        """
        rise = max(1, round(self.warm_up * steps))
        return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def fit(run: Run, name: str, model: C, corpus: Corpus, options: Fitting, seed: int) -> dict[str, np.ndarray]:
    """Train the model inside a stage; return its weights, named ``weights.NAME``, and the losses during training.

    ``losses`` has the loss of every step, ``valid`` the accuracy on held-out reviews after every epoch. Batches and
    dropout depend only on ``seed`` and the number of the step, so a resumed training gives the same results.
    """
    device = device_called(options.device)
    model, watch = model.to(device).train(), Watch(device)
    per_epoch = -(-len(corpus.train) // options.batch)
    steps = options.epochs * per_epoch
    config = TrainingConfig(lr=options.lr, weight_decay=options.weight_decay, clip=options.clip)
    optimizer = Optimizer(model, config, partial(options.factor, steps=steps))

    @lru_cache(maxsize=1)
    def order(epoch: int) -> list[np.ndarray]:
        return batches(corpus.train, options.batch, seed, epoch)

    def batch(step: int) -> tuple[Tensor, ...]:
        epoch, place = divmod(step, per_epoch)
        torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
        return _tensors(corpus.train, order(epoch)[place], device)

    def loss(ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(ids, lengths), labels)

    def validate(step: int, losses: np.ndarray) -> float:
        valid = accuracy(model, corpus.valid, options.batch)
        run.log(name, step=step - 1, loss=float(losses.mean()), valid=valid)
        return valid

    hook = _Epochs(watch, validate)
    with _repeatable(device):
        run.train(name, looped(model, Objective(loss, batch), optimizer, watch, steps, hook, per_epoch))
    weights = {f"weights.{key}": p.detach().cpu().numpy() for key, p in model.named_parameters()}
    return {**weights, "losses": np.concatenate(hook.losses), "valid": np.array(hook.valid)}


class _Epochs(Hooks):
    """A hook that stores the loss of every step, and calls ``validate(step, losses)`` after every epoch."""

    def __init__(self, watch: Watch, validate: Callable[[int, np.ndarray], float]) -> None:
        self.watch, self.validate = watch, validate
        self.losses: list[np.ndarray] = []
        self.valid: list[float] = []

    def looked(self, step: int) -> None:
        self.losses.append(self.watch.values()[:, 0].astype(np.float32))
        self.valid.append(self.validate(step, self.losses[-1]))

    def tensors(self) -> dict[str, Tensor]:
        losses = torch.tensor(np.array(self.losses, dtype=np.float32))
        return {"losses": losses, "valid": torch.tensor(self.valid, dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        self.losses, self.valid = [*tensors["losses"].numpy()], tensors["valid"].tolist()


def load(model: C, arrays: Mapping[str, np.ndarray]) -> C:
    """Load the weights from the result of :func:`fit` into the model, and return the model."""
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.from_numpy(arrays[f"weights.{key}"]))
    return model


def accuracy(model: Classifier, reviews: Reviews, batch: int) -> float:
    """Return the fraction of the reviews that the model classifies correctly, by the sign of the score."""
    device = next(model.parameters()).device
    order, right = np.argsort(reviews.lengths, kind="stable"), 0
    with evaluation_mode(model), torch.no_grad():
        for first in range(0, len(order), batch):
            ids, lengths, labels = _tensors(reviews, order[first : first + batch], device)
            right += int(((model(ids, lengths) > 0) == (labels > 0)).sum())
    return right / len(reviews)


def batches(reviews: Reviews, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Divide all reviews into batches of reviews with similar lengths. The batches depend only on the seed and the
    epoch.
    """
    rng = np.random.default_rng([seed, epoch])
    order, found = rng.permutation(len(reviews)), []
    for first in range(0, len(order), _POOL * size):
        pool = order[first : first + _POOL * size]
        pool = pool[np.argsort(reviews.lengths[pool], kind="stable")]
        found += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [found[i] for i in rng.permutation(len(found))]


def _tensors(reviews: Reviews, index: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    ids, lengths, labels = map(torch.from_numpy, reviews.padded(index))
    return ids.to(device), lengths, labels.to(device, torch.float32)


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Make computations inside the ``with`` block deterministic; restore torch's random state and settings
    afterwards.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # required for deterministic cuBLAS and cuDNN
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)

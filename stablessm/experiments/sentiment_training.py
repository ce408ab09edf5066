"""One classifier at a time, trained in steps that can be killed and gone on with."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm._errors import ArgumentError
from stablessm.experiments.run import Run
from stablessm.experiments.sentiment_models import Classifier
from stablessm.experiments.training import device_called
from stablessm.tasks.corpus import Corpus, Reviews

C = TypeVar("C", bound=Classifier)

_POOL = 32
"""Batches whose reviews are sorted by length together: batches of like length, in random order."""


@dataclass(frozen=True)
class Fitting:
    """AdamW; gradients clipped; the learning rate rises over the first steps and falls to 0, both linearly."""

    epochs: int
    batch: int
    lr: float
    warm_up: float = 0.05
    """The part of the steps over which the learning rate rises."""
    weight_decay: float = 0.0
    clip: float = 1.0
    device: str = "auto"
    """``auto``: a GPU if there is one."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"fitting.{name}", "a positive number", getattr(self, name))

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step.

        >>> options = Fitting(epochs=1, batch=1, lr=1.0, warm_up=0.25)
        >>> [round(options.rate(step, 8), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
        """
        rise = max(1, round(self.warm_up * steps))
        return self.lr * min((step + 1) / rise, (steps - step) / max(1, steps - rise))

    def chosen_device(self) -> torch.device:
        """Where to train."""
        return device_called(self.device)


def fit(run: Run, name: str, model: C, corpus: Corpus, options: Fitting, seed: int) -> dict[str, np.ndarray]:
    """Train the model, inside a stage: its weights, as ``weights.NAME``, and what was seen on the way.

    ``losses``: of every step; ``valid``: accuracy on the held-out reviews after every epoch. Batches and dropout
    depend on ``seed`` and the step alone.
    """
    device = options.chosen_device()
    model = model.to(device)
    named = dict(model.named_parameters())
    optimiser = torch.optim.AdamW(named.values(), lr=options.lr, weight_decay=options.weight_decay)
    per_epoch = -(-len(corpus.train) // options.batch)
    steps = options.epochs * per_epoch
    losses, valid = torch.zeros(steps, device=device), np.zeros(options.epochs)
    order: list[np.ndarray] = []

    def weights() -> dict[str, np.ndarray]:
        return {f"weights.{key}": p.detach().cpu().numpy() for key, p in named.items()}

    def save() -> dict[str, np.ndarray]:
        moments = {
            f"{moment}.{key}": optimiser.state[p][moment].cpu().numpy()
            for key, p in named.items()
            for moment in ("step", "exp_avg", "exp_avg_sq")
        }
        return weights() | moments | {"losses": losses.cpu().numpy(), "valid": valid}

    def restore(arrays: Mapping[str, np.ndarray]) -> None:
        load(model, arrays)
        for key, p in named.items():
            optimiser.state[p] = {
                "step": torch.tensor(arrays[f"step.{key}"]),
                **{m: torch.from_numpy(arrays[f"{m}.{key}"]).to(device) for m in ("exp_avg", "exp_avg_sq")},
            }
        losses.copy_(torch.from_numpy(arrays["losses"]))
        valid[:] = arrays["valid"]

    with _repeatable(device):
        for step in run.loop(name, steps, save, restore):
            epoch, place = divmod(step, per_epoch)
            if place == 0 or not order:
                order = batches(corpus.train, options.batch, seed, epoch)
            torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
            model.train()
            ids, lengths, labels = _tensors(corpus.train, order[place], device)
            loss = F.binary_cross_entropy_with_logits(model(ids, lengths), labels)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(named.values(), options.clip)
            optimiser.param_groups[0]["lr"] = options.rate(step, steps)
            optimiser.step()
            losses[step] = loss.detach()
            if place == per_epoch - 1:
                valid[epoch] = accuracy(model, corpus.valid, options.batch)
                run.log(name, step=step, loss=float(losses[step - place : step + 1].mean()), valid=valid[epoch])
    return weights() | {"losses": losses.cpu().numpy(), "valid": valid}


def load(model: C, arrays: Mapping[str, np.ndarray]) -> C:
    """The model with the weights of :func:`fit`."""
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.from_numpy(arrays[f"weights.{key}"]))
    return model


def accuracy(model: Classifier, reviews: Reviews, batch: int) -> float:
    """The part of the reviews whose score has the right sign."""
    device = next(model.parameters()).device
    order, right = np.argsort(reviews.lengths, kind="stable"), 0
    was = model.training
    model.eval()
    with torch.no_grad():
        for first in range(0, len(order), batch):
            ids, lengths, labels = _tensors(reviews, order[first : first + batch], device)
            right += int(((model(ids, lengths) > 0) == (labels > 0)).sum())
    model.train(was)
    return right / len(reviews)


def batches(reviews: Reviews, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """All reviews in batches of like length; which, and in what order, depends on seed and epoch alone."""
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
    """The same bits each time; torch's random state and settings are given back as they were."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # as cuBLAS and cuDNN's recurrences ask for
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)

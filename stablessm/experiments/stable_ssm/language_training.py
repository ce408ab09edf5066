"""Trains and measures one language model without storing its weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.user_training import possible
from stablessm.instruments import GradientTracker
from stablessm.tasks.base import Split, Task
from stablessm.training import TrainingConfig
from stablessm.training.divergence import DivergenceReport, Watch, diagnose
from stablessm.training.evaluate import outputs
from stablessm.training.gradient import Gradient
from stablessm.training.optimizer import Optimizer
from stablessm.training.ranks import Ranks
from stablessm.training.steps import Hooks, StepLoop
from stablessm.training.trainee import trainee


@dataclass(frozen=True)
class LanguageTraining:
    """Options of AdamW with linear warm-up, cosine decay, and no weight decay of recurrent weights (StableSSM, C.2)."""

    steps: int
    batch: int = 16
    warmup: int = 100
    """Steps over which the rate rises from 0."""
    planned: int | None = None
    """Number of steps after which the cosine reaches zero (default: ``steps``), for the beginning of a longer
    training."""
    recurrent: float = 0.8
    """Learning rate of the recurrent weights relative to the other weights: the paper has 0.004 and 0.005."""
    weight_decay: float = 0.25
    clip: float | None = None
    """Largest norm of the gradient; the paper does not mention one."""
    explode: float = 1.5
    """A training run has diverged when its loss, averaged over about ten steps, is this multiple of the initial loss.
    """
    look_every: int = 10
    """Number of steps between two measurements of |gradient| / |weight|, and on a GPU between two checks for
    divergence."""
    scored: int = 50
    """Largest number of batches of a split that are scored."""
    autocast: bool = True
    """Whether matrix products are computed in bfloat16."""
    graph: bool = False
    """Whether a GPU runs a step as a CUDA graph; a CPU ignores it."""
    device: str = "auto"
    """A device, or ``auto``: a GPU if there is one."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < (self.planned or self.steps):
            raise ArgumentError("training.warmup", f"from 0 to less than {self.planned or self.steps}", self.warmup)

    def config(self, lr: float, seed: int) -> TrainingConfig:
        """Return these options as a configuration of the training loop, with the given learning rate and seed."""
        planned = self.planned or self.steps
        settings = TrainingConfig(
            steps=planned,
            batch_size=self.batch,
            lr=lr,
            recurrent_lr=self.recurrent * lr,
            weight_decay=self.weight_decay,
            warmup=self.warmup / planned,
            clip=self.clip,
            autocast=self.autocast,
            graph=self.graph,
            seed=seed,
            explode=self.explode,
            device=self.device,
        )
        return possible(settings)


def fit(
    model: nn.Module,
    task: Task,
    options: LanguageTraining,
    lr: float,
    seed: int,
    *,
    run: Run | None = None,
    stage: str = "",
    resumable: bool = True,
) -> dict[str, np.ndarray]:
    """Train the model until the last step or until it diverges, and return measurements of the training run as arrays.
    The model keeps the weights of the last step.

    With a ``run`` and the name of its ``stage``, checkpoints are written to the run folder, and an interrupted training
    resumes from the last checkpoint. Training without checkpoints (``resumable=False``) only shows its progress.

    Returns:
        ``losses`` and ``norms``: the loss and the norm of the gradient at every step before a divergence. ``looks``:
            the steps at which |gradient| / |weight| of the recurrent weights is measured. ``largest`` and ``typical``:
            the largest and the median ratio at these steps. ``diverged``: the step of the divergence, or -1.
            ``report``: the diagnosis of the divergence as text, or an empty text.
    """
    config = options.config(lr, seed)
    device, planned = config.chosen_device(), options.planned or options.steps
    model, task, watch, ranks = model.to(device).train(), task.to(device), Watch(device), Ranks()
    optimizer = Optimizer(model, config, config.rates(planned))
    epoch = config.steps_per_epoch(task.steps("train", config.batch_size))
    gradient = Gradient(trainee(model, config, device, ranks), task, config, epoch, watch, ranks)
    hook = _Seen(model, gradient, options.look_every)
    loop = partial(StepLoop, model, gradient, optimizer, watch, options.steps, [hook], look=lambda step: False)
    if run is not None and resumable:
        run.train(stage, loop)
    else:
        loop().run(progress=run is not None and run.progress, name=stage)
    optimizer.clear()
    return hook.arrays(options.steps)


class _Seen(Hooks):
    """A hook that measures |gradient| / |weight| of the recurrent weights during training, and diagnoses a
    divergence.
    """

    def __init__(self, model: nn.Module, gradient: Gradient, every: int) -> None:
        self.gradient, self.every = gradient, every
        self.tracker = GradientTracker(model, every=every, recurrent_only=True)
        self.report: DivergenceReport | None = None

    def computed(self, step: int) -> None:
        self.tracker.update()

    def updated(self, step: int) -> None:
        """Check whether the training run has diverged: on a CPU after every step; on a GPU every ``every`` steps,
        because a check waits for the GPU.
        """
        if self.gradient.task.device.type == "cpu" or step % self.every == 0:
            self.look(step)

    def look(self, step: int) -> None:
        """If the loss or gradient of a step was not finite, diagnose the first such step. The optimizer has skipped
        this step and all later steps.
        """
        found = self.gradient.watch.first_bad()
        if found is not None and self.report is None:
            at, model = step - found[0], self.gradient.trainee.model
            self.report = diagnose(model, lambda: self.gradient.replay(at), at, found[1])

    @property
    def stopped(self) -> bool:
        return self.report is not None

    def tensors(self) -> dict[str, Tensor]:
        return self.tracker.tensors()

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        self.tracker.restore(tensors)

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        """Return the measurements of the training run by name: losses, gradient norms, gradient-to-weight ratios, and
        the step at which the training run diverged.
        """
        self.look(len(self.gradient.watch.losses))
        last = steps if self.report is None else self.report.step
        seen, history = self.gradient.watch.values()[:last], self.tracker.history
        known = history.step < max(last, 1)
        return {
            "losses": seen[:, 0],
            "norms": seen[:, 1],
            "looks": history.step[known],
            "largest": history.maximum[known].max(1),
            "typical": np.median(history.quantiles[known, :, 0], 1),
            "diverged": np.array(-1 if self.report is None else self.report.step),
            "report": np.array("" if self.report is None else str(self.report)),
        }


@torch.no_grad()
def mean_loss(model: nn.Module, task: Task, split: Split, options: LanguageTraining) -> float:
    """Return the mean loss in nats per token over the first batches of a split; each window starts from a zero
    state.
    """
    device = next(model.parameters()).device
    total = torch.zeros(2, dtype=torch.float64, device=device)
    task = task.to(device)
    with closing(outputs(model, task, split, options.batch, carry=False, autocast=options.autocast)) as read:
        for output, batch, _ in islice(read, options.scored):
            _, count = task.score(output, batch)
            total += torch.stack([task.loss(output, batch).double() * count, count])
    loss, count = total.tolist()
    return float(loss / count)


def scores(
    model: nn.Module, task: Task, options: LanguageTraining, found: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return ``train`` and ``test``, the losses in nats per token after training; NaN if the training run diverged."""
    splits: tuple[Split, ...] = ("train", "test")
    if int(found["diverged"]) >= 0:
        return dict.fromkeys(splits, float("nan"))
    return {split: mean_loss(model, task, split, options) for split in splits}

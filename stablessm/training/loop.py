"""Train a model on a task, in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stablessm._errors import ArgumentError
from stablessm._locks import alone
from stablessm.tasks.base import Task
from stablessm.training import folder as run_folder
from stablessm.training.checkpoint import Checkpoints
from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.optimiser import Optimiser
from stablessm.training.precision import tensor_float32
from stablessm.training.ranks import Ranks, joined
from stablessm.training.result import TrainingResult
from stablessm.training.session import Session
from stablessm.training.settings import signature
from stablessm.training.steps import Cadence, StepLoop
from stablessm.training.trainee import trainee

CHECKPOINT_SECONDS = 60.0
"""How much work a kill can cost, or twenty times what it takes to save it; unless ``checkpoint_every`` says."""


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    folder: str | Path,
    *,
    resume: bool | Literal["last-good"] = True,
    progress: bool = True,
    origin: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train a model on a task; everything goes into ``folder``, and a killed run goes on from there to the same bits.

    The folder gets ``model/`` (``stablessm.load`` reads it), ``record.json``, ``metrics.jsonl``, ``tensorboard/`` (with
    the package tensorboard) and ``checkpoints/``. A run stops early when it diverges: when the loss or the norm of
    the gradient is not finite, or the loss, over about ten steps, is more than ``config.explode`` times that of the
    first step (or of an output of zeros, if that is larger). SIGINT and SIGTERM leave a checkpoint and raise
    ``Interrupted``.

    Called by every process that ``torchrun`` started (or of a ``torch.distributed`` group), they train together: a
    batch is that of a single process, each takes its rows of it, and losses and scores are those of all. Rank 0
    writes the folder, which all must be able to read. What is in it goes on with another number of processes. A second
    training in the same folder is refused while the first one runs.

    Args:
        model: from a batch's inputs to outputs, or to ``(outputs, state)`` as layers do; for a task that carries, one
            with ``sequence(x, state, reset=…) -> (outputs, state)``. It ends on ``config.device`` (in shards, on the
            CPU) with the weights that ``config.select`` says.
        resume: ``True``: go on from the last checkpoint, if there is one. ``"last-good"``: the same, but from the one
            before if the last is damaged. ``False``: start again, and remove what an earlier run left.
        progress: whether to show a bar (on a terminal), and to say so when a run goes on.
        origin: plain values to note in ``training.json``: where the task came from, say.

    >>> import tempfile, stablessm as ssm
    >>> x = torch.randn(64, 20, 1)
    >>> task = ssm.tasks.get("arrays", inputs=x, targets=x.cumsum(1) / 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = TrainingConfig(steps=60, batch_size=16, lr=0.03, device="cpu")
    ...     result = train(ssm.RealSSM(1, 8, 1), task, config, folder, progress=False)
    >>> bool(result.losses[-1, 1] < result.losses[0, 1])
    True
    """
    if resume not in (True, False, "last-good"):
        raise ArgumentError("resume", "True, False or 'last-good'", repr(resume))
    folder = Path(folder)
    with joined() as ranks, ExitStack() as until_the_end:
        ranks.first(lambda: run_folder.check_folder(folder))
        device = ranks.device(config.chosen_device())
        settings = {"config": config.binding(), "task": task.describe(), "model": signature(model)}
        session, loop = _single(
            model, task, config, folder, device, ranks, Checkpoints(folder / "checkpoints", settings, ranks)
        )
        ranks.first(lambda: until_the_end.enter_context(alone(folder.absolute())))
        before = model.training
        model.train()
        loop.trained.train()
        try:
            if resume:
                loop.resume(last_good=resume == "last-good")
            marker = {**settings, "origin": origin or {}}
            ranks.first(lambda: run_folder.claim(folder, marker, task.companions, fresh=not resume))
            session.begin()
            with tensor_float32(config.autocast and device.type == "cuda"):
                loop.run(progress=progress and ranks.main)
        finally:
            model.train(before)
            session.close()
        with tensor_float32(config.autocast and device.type == "cuda"):
            return session.finish()


def _single(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    folder: Path,
    device: torch.device,
    ranks: Ranks,
    checkpoints: Checkpoints,
) -> tuple[Session, StepLoop]:
    """One model, on one rank or several."""
    own = trainee(model, config, device, ranks, carries=task.carries)
    batches, watch = task.steps("train", config.batch_size), Watch(device)
    total = config.total_steps(batches)
    optimiser = Optimiser(own.trained, config, config.schedule(total))
    gradient = Gradient(own, task.to(device), config, config.steps_per_epoch(batches), watch, ranks)
    session = Session(gradient, folder, total)
    session.loop = StepLoop(
        own.trained, gradient, optimiser, watch, total, [session], look=session.looks, checkpoints=checkpoints,
        cadence=Cadence(config.checkpoint_every, CHECKPOINT_SECONDS), sharded=own.sharded,
    )  # fmt: skip
    return session, session.loop

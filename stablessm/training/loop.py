"""The function ``train``, which trains a model on a task and writes the results to a run folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import nn

from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted
from stablessm._locks import alone
from stablessm.tasks.base import Task
from stablessm.training import folder as run_folder
from stablessm.training.checkpoint import Checkpoints, remove
from stablessm.training.config import EXTENDS, TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient, Strategy
from stablessm.training.loggers import Logger
from stablessm.training.optimizer import Optimizer, StackedOptimizer
from stablessm.training.precision import tensor_float32
from stablessm.training.ranks import Ranks, joined
from stablessm.training.replicas import Replica, Replicas
from stablessm.training.result import TrainingResult, together
from stablessm.training.session import Session, write_record
from stablessm.training.settings import require_resumable, signature
from stablessm.training.stack import Stack
from stablessm.training.steps import Cadence, StepLoop
from stablessm.training.trainee import trainee
from stablessm.training.warm_start import warm_start

CHECKPOINT_SECONDS = 60.0
"""Default number of seconds between checkpoints; more if writing a checkpoint takes more than a 20th of this time."""
_CHECKPOINTS = "checkpoints"
REPLICA = "replica"
"""Prefix of the folders of replicas: ``replica-0``, ``replica-1``, …"""


@checked
def train(
    model: nn.Module | Callable[[], nn.Module],
    task: Task,
    config: TrainingConfig,
    folder: str | Path,
    *,
    resume: bool | Literal["last-good"] = True,
    extend: bool = False,
    progress: bool = True,
    origin: Mapping[str, Any] | None = None,
    loggers: Sequence[Logger] = (),
) -> TrainingResult:
    """Train a model on a task; a killed run resumes from ``folder`` and ends with exactly the same weights.

    The folder gets ``model/`` (``stablessm.load`` reads it), ``record.json``, ``metrics.jsonl``, ``tensorboard/`` and
    ``checkpoints/``; no second training run may use the folder at the same time. A run stops when it diverges: when the
    loss or the norm of the gradient is not finite, or when the mean loss over about ten steps is more than
    ``config.explode`` times the loss of the first step (or of zero outputs, if that is larger). At SIGINT and SIGTERM,
    a checkpoint is written and ``Interrupted`` is raised.

    The processes of ``torchrun`` (or of a ``torch.distributed`` group) train together: each computes its rows of every
    batch. Rank 0 writes the folder, which all ranks read. Another number of processes may resume the run.

    ``config.replicas`` models are trained as one computation (``torch.vmap``): replica i with the seed
    ``config.seed + i``, in the folder ``replica-i``. If one replica diverges, the others continue.

    Args:
        model: A module that maps inputs to outputs or to ``(outputs, state)``, or a function without arguments that
            returns such a module. A task that carries the state requires a method ``sequence(x, state, reset=…) ->
            (outputs, state)``. A function is called for each replica after ``torch.manual_seed`` with its seed; a
            module is replica 0, and all replicas start with its weights. After training, the module is on
            ``config.device`` (on the CPU if it was sharded) with the weights that ``config.select`` names.
        resume: ``True`` resumes from the last checkpoint, ``"last-good"`` from the previous one if the last is damaged;
            ``False`` starts again and removes the files of an earlier run.
        extend: Resume with different ``epochs``, ``steps``, ``lr``, ``recurrent_lr``, ``schedule``, ``warmup``,
            ``cooldown`` or ``patience``; ``record.json`` lists the changes.
        progress: Show a progress bar in a terminal, and report that a run is resumed.
        origin: Plain values to store in ``training.json``, such as the source of the task.
        loggers: Objects with the methods of :class:`~stablessm.training.loggers.Logger`, which receive all metrics.

    >>> import tempfile, stablessm as ssm
    >>> x = torch.randn(64, 20, 1)
    >>> task = ssm.tasks.get("arrays", inputs=x, targets=x.cumsum(1) / 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = TrainingConfig(steps=60, batch_size=16, lr=0.03, device="cpu")
    ...     result = train(ssm.RealSSM(1, 8, 1), task, config, folder, progress=False)
    >>> bool(result.losses[-1, 1] < result.losses[0, 1])
    True
    """
    folder = Path(folder)
    with joined() as ranks, ExitStack() as until_the_end:
        _require_possible(task, config, ranks, resume, extend)
        ranks.first(lambda: run_folder.check_folder(folder))
        models, again = _models(model, config), bool(resume and Checkpoints(folder / _CHECKPOINTS, {}).paths())
        run = _Run(models, task, config, folder, ranks, loggers, extend=extend, again=again)
        ranks.first(lambda: until_the_end.enter_context(alone(folder.absolute())))
        until_the_end.callback(run.end_loggers)
        with tensor_float32(config.autocast and run.task.device.type == "cuda"):
            run.complete(resume, origin or {}, progress=progress)
            return run.finish()


def _require_possible(task: Task, config: TrainingConfig, ranks: Ranks, resume: object, extend: bool) -> None:
    """Raise an error if arguments of :func:`train` contradict each other, for example ``extend`` and
    ``resume=False``.
    """
    if resume not in (True, False, "last-good"):
        raise ArgumentError("resume", "True, False or 'last-good'", quoted(resume))
    if extend and resume is False:
        raise ArgumentError("extend", "False with resume=False", extend)
    if config.replicas > 1 and (ranks.size > 1 or task.carries):
        expected = "1 under torchrun" if ranks.size > 1 else "1 with a task that carries its state"
        raise ArgumentError("replicas", expected, config.replicas)
    config.steps_per_epoch(task.steps("train", config.batch_size))


def _models(model: nn.Module | Callable[[], nn.Module], config: TrainingConfig) -> list[nn.Module]:
    """Return one model per replica. If ``model`` is a module, it is replica 0, and the other replicas are copies of it;
    if ``model`` is a function, it builds each replica with the seed of the replica.
    """
    if isinstance(model, nn.Module):
        return [model, *(copy.deepcopy(model) for _ in range(config.replicas - 1))]
    found = []
    with torch.random.fork_rng():
        for i in range(config.replicas):
            torch.manual_seed(config.seed + i)
            found.append(model())
    return found


@final
class _Run:
    """One call of :func:`train`, with the step loop and one session per model.

    Args:
        again: Whether the run is resumed from a checkpoint.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        task: Task,
        config: TrainingConfig,
        folder: Path,
        ranks: Ranks,
        loggers: Sequence[Logger],
        *,
        extend: bool,
        again: bool,
    ) -> None:
        source = None if again else config.init_from
        history = [] if source is None else [{"step": 0, "init_from": warm_start(models, source, folder)}]
        device = ranks.device(config.chosen_device())
        self.settings = {"config": config.binding(), "task": task.describe(), "model": signature(models[0])}
        self.folder, self.config, self.ranks, self.replicas = folder, config, ranks, len(models) > 1
        self.extend, self.loggers, self.begun = extend, loggers, 0
        self.result: TrainingResult | None = None
        batches, self.task = task.steps("train", config.batch_size), task.to(device)
        total, watch = config.total_steps(batches), Watch(device, len(models) if self.replicas else None)
        stack = Stack(models, device) if self.replicas else None
        self.sessions: list[Session] = []
        for i, model in enumerate(models):
            own = replace(config, seed=config.seed + i, replicas=1)
            trained = Replica(stack, i) if stack else trainee(model, own, device, ranks, carries=task.carries)
            gradient = Gradient(trained, self.task, own, config.steps_per_epoch(batches), watch, ranks)
            name = f"{REPLICA}-{i}" if self.replicas else ""
            self.sessions.append(Session(gradient, folder / name, total, number=i, name=name, loggers=loggers))
        first, schedule = self.sessions[0], config.rates(total)
        strategy: Strategy = first.gradient
        if stack is None:
            self.trained: nn.Module = first.trainee.trained
            optimizer = Optimizer(self.trained, config, schedule)
        else:
            self.trained = stack
            strategy = Replicas(stack, [session.gradient for session in self.sessions], watch)
            optimizer = StackedOptimizer(stack, config, schedule)
        self.loop = StepLoop(
            self.trained, strategy, optimizer, watch, total, self.sessions, look=first.looks,
            checkpoints=Checkpoints(folder / _CHECKPOINTS, self.settings, ranks, self._agree),
            cadence=Cadence(config.checkpoint_every, CHECKPOINT_SECONDS), sharded=first.trainee.sharded,
        )  # fmt: skip
        self.loop.history = history

    def complete(self, resume: bool | Literal["last-good"], origin: Mapping[str, Any], *, progress: bool) -> None:
        """Run the remaining training steps, from the last checkpoint if ``resume`` allows it and there is a checkpoint;
        otherwise prepare a new run and run all steps.

        ``origin`` is stored with the settings of the run.
        """
        try:
            self.trained.train()
            for session in self.sessions:
                session.loop = self.loop
                session.model.train()
            if resume:
                changed = self.loop.resume(last_good=resume == "last-good")
                if self.extend and self.loop.step == 0:
                    raise ArgumentError("extend", "a folder with checkpoints of a run", str(self.folder))
                for session in self.sessions:
                    if changed:
                        session.wait_again()
                    session.check_kept(last_good=resume == "last-good")
            self.ranks.first(lambda: self._claim(origin, fresh=not resume))
            for session in self.sessions:
                session.begin()
            for logger in self.loggers if self.ranks.main else ():
                logger.begin(self.folder, {**self.settings, "config": asdict(self.config)}, self.loop.step)
                self.begun += 1
            self.loop.run(progress=progress and self.ranks.main)
        finally:
            for session in self.sessions:
                session.close()

    def finish(self) -> TrainingResult:
        """Select and score the weights of every model, write the records, and return the result."""
        found = [session.finish() for session in self.sessions]
        if not self.replicas:
            self.result = found[0]
            return found[0]
        for session in self.sessions:  # so that the memory of the stack can be freed
            for tensor in (*session.model.parameters(), *session.model.buffers()):
                tensor.data = tensor.data.clone()
        self.result = together(self.folder, self.loop.seconds, found)
        write_record(self.result, self.config, self.task, self.settings["model"], self.loop, self.ranks.size)
        return self.result

    def end_loggers(self) -> None:
        """Call ``end`` of every logger whose ``begin`` was called."""
        for logger in self.loggers[: self.begun]:
            logger.end(self.result)

    def _agree(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, tuple[Any, Any]]:
        """Return the old and new values of settings that changed since a checkpoint; raise an error if the run cannot
        be resumed with a changed setting.
        """
        was, is_ = ({**each, "config": self.config.filled(each["config"])} for each in (before, now))
        return require_resumable(was, is_, changeable=[f"config.{name}" for name in EXTENDS], extend=self.extend)

    def _claim(self, origin: Mapping[str, Any], *, fresh: bool) -> None:
        """Prepare the folders of the run and of its replicas, and write the settings and ``origin`` into them.

        With ``fresh``, first remove the files of an earlier run.
        """
        if fresh:
            remove(*self.folder.glob(f"{REPLICA}-*"))
        if self.replicas:
            settings = {**self.settings, "origin": origin, "steps": self.loop.total}
            run_folder.claim(self.folder, settings, {}, fresh=fresh)
        for session in self.sessions:
            config = session.config.binding()
            own = {**self.settings, "config": config, "origin": origin, "steps": self.loop.total}
            run_folder.claim(session.folder, own, self.task.companions, fresh=fresh)

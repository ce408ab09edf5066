"""The training loop."""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm._locks import alone
from stablessm.instruments import GradientOverWeight
from stablessm.instruments.modes import recurrent_modules
from stablessm.tasks.base import Split, Task
from stablessm.training import folder as run_folder
from stablessm.training.checkpoint import Checkpoint, Checkpoints
from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import DivergenceReport, Watch, diagnose
from stablessm.training.evaluate import evaluate
from stablessm.training.gradient import Gradient
from stablessm.training.interrupt import Interrupted, requests
from stablessm.training.metrics import Metrics, read_rows
from stablessm.training.optimiser import Optimiser
from stablessm.training.precision import tensor_float32
from stablessm.training.ranks import Ranks, joined
from stablessm.training.result import TrainingResult
from stablessm.training.schedule import rate
from stablessm.training.settings import signature
from stablessm.training.trainee import load, trainee

CHECKPOINT_SECONDS = 60.0
"""How much work a kill can cost, or twenty times what it takes to save it; unless ``checkpoint_every`` says."""
_VIEW = "FSDP2-wrapped module .* returned a view tensor"
"""A warning: the state of a block is a view. Nothing changes it in place."""


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
    with joined() as ranks, ExitStack() as until_the_end:
        run = _Run(model, task, config, Path(folder), resume, progress, origin or {}, ranks, until_the_end)
        with tensor_float32(config.autocast and run.device.type == "cuda"):
            return run.complete()


@final
class _Run:
    """One call of ``train``."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        folder: Path,
        resume: bool | Literal["last-good"],
        progress: bool,
        origin: Mapping[str, Any],
        ranks: Ranks,
        until_the_end: ExitStack,
    ) -> None:
        if resume not in (True, False, "last-good"):
            raise ArgumentError("resume", "True, False or 'last-good'", repr(resume))
        ranks.first(lambda: run_folder.check_folder(folder))
        self.started = time.perf_counter()
        self.config, self.folder, self.ranks, self.progress = config, folder, ranks, progress and ranks.main
        self.device = ranks.device(config.chosen_device())
        self.settings = {"config": config.binding(), "task": task.describe(), "model": signature(model)}
        self.trainee = trainee(model, config, self.device, ranks, carries=task.carries)
        self.model, self.trained = model, self.trainee.trained
        self.task = task.to(self.device)
        batches = task.steps("train", config.batch_size)
        self.epoch, self.total = config.steps_per_epoch(batches), config.total_steps(batches)
        self.validates = task.steps("valid", config.batch_size) > 0
        self.optimiser, self.watch = Optimiser(self.trained, config, self.total), Watch(self.device)
        self.gradient = Gradient(self.trainee, self.task, config, self.epoch, self.watch, ranks)
        self.recurrent = any(True for _ in recurrent_modules(model))
        self.named = dict(self.trained.named_parameters())
        self.checkpoints = Checkpoints(folder / "checkpoints", self.settings, ranks)
        self.step, self.seconds_before = 0, 0.0
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.diverged: DivergenceReport | None = None
        self.ratios: GradientOverWeight | None = None
        ranks.first(lambda: until_the_end.enter_context(alone(folder.absolute())))
        if resume:
            self._resume(self.checkpoints.load(last_good=resume == "last-good", like=self._like))
        marker = {**self.settings, "origin": origin}
        ranks.first(lambda: run_folder.claim(folder, marker, task.companions, fresh=not resume))
        self.metrics = Metrics(folder, self.step) if ranks.main else None
        self.saved_at = self.mark = time.perf_counter()
        self.save_cost, self.marked, self.saved = 0.0, self.step, -1

    def complete(self) -> TrainingResult:
        """Run to the end, and write it up."""
        from tqdm import tqdm

        before, devices = self.model.training, [self.device] if self.device.type == "cuda" else []
        bar = tqdm(
            total=self.total, initial=self.step, unit="step", disable=None if self.progress else True, mininterval=0.5
        )
        if self.progress and self.step:
            bar.write(f"going on after step {self.step} of {self.total}")
        self.model.train()
        self.trained.train()
        try:
            with requests() as request, torch.random.fork_rng(devices), warnings.catch_warnings(), bar:
                warnings.filterwarnings("ignore", _VIEW)
                while self.step < self.total and self.diverged is None:
                    self._train_step()
                    bar.update()
                    self._look(bar)
                    signal, due = self.ranks.highest(request.signal or 0, self.ranks.main and self._checkpoint_due())
                    if self.diverged is None and (due or signal):
                        self._checkpoint()
                    if signal and self.diverged is None:
                        raise Interrupted(signal, self.step)
        finally:
            self.model.train(before)
            if self.metrics is not None:
                self.metrics.close()
        return self._finish()

    def _train_step(self) -> None:
        self.optimiser.clear()
        loss = self.gradient.compute(self.step)
        norm = self.optimiser.clip()
        self.watch.see(loss, norm)
        self.gradient.carry.settle(self.watch.bad)
        self.ratios = None
        if self.recurrent and self._logs(self.step + 1):
            self.ratios = self.trainee.ratios()
        self.optimiser.step(self.step, self.watch.bad)
        self.ranks.share(self.trained, buffers_only=True)
        self.step += 1

    def _look(self, bar: Any) -> None:
        """After a step: note losses, evaluate, notice a divergence, each in its time."""
        evaluates = self._evaluates(self.step)
        due = evaluates or self._logs(self.step)
        if (due or self.device.type == "cpu") and self.watch.bad:  # a GPU would have to be waited for
            self._diverge()
        if not due or self.diverged is not None:
            return
        losses, norms, _ = self.watch.values().T
        seen = (self.step - self.marked) * self.config.accumulate * self.config.batch_size
        speed = seen / (time.perf_counter() - self.mark)
        self.watch.clear()
        lr = self.config.lr * rate(self.step - 1, self.total, self.config.warmup)
        row: dict[str, Any] = {"epoch": self.step / self.epoch, "loss": float(losses.mean())}
        row |= {"gradient_norm": float(norms.max()), "lr": lr}
        if self.ratios is not None:
            by_name = {name: entry.maximum for name, entry in self.ratios.parameters.items()}
            row |= {"gradient_over_weight": self.ratios.maximum, "gradient_over_weight_of": by_name}
        self._say(**row, sequences_per_second=speed)
        bar.set_postfix_str(f"loss {row['loss']:.4g}, {speed:.4g} sequences/s{self._validated()}")
        if evaluates:
            self._evaluate()
        self.mark, self.marked = time.perf_counter(), self.step

    def _evaluate(self) -> None:
        config, metric = self.config, self.task.metric
        scores = self._scores_of("valid")
        self._say(split="valid", **scores)
        self.last = {"step": self.step, **scores}
        sign = 1 if self.task.higher_is_better else -1
        better = self.best is None or sign * scores[metric] > sign * self.best[metric]
        if better and math.isfinite(scores[metric]):
            self.best = self.last
            if config.select == "best":
                self._keep()
                self._checkpoint()

    def _scores_of(self, split: Split) -> dict[str, Any]:
        size, autocast = self.config.batch_size, self.config.autocast
        return dict(evaluate(self.trained, self.task, split, size, autocast=autocast, ranks=self.ranks))

    def _keep(self) -> None:
        self.trainee.collect()
        self.ranks.first(lambda: run_folder.keep(self.model, self.folder))

    def _say(self, **values: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(self.step, **values)

    def _diverge(self) -> None:
        """Find the step at which it happened, which left the weights as they were then, and do it again."""
        seen, limit = self.watch.values(), float(self.watch.limit)
        good = np.isfinite(seen).all(1) & (seen[:, 2] <= limit)
        first = int(np.argmin(good))
        self.step += first - len(seen)
        loss, norm, mean = seen[first].tolist()
        self.trainee.collect()
        carried = self.gradient.carry.everyone()
        self.diverged = diagnose(
            self.model, lambda: self.gradient.replay(self.step, carried), self.step, (loss, norm, mean), limit
        )
        self.model.zero_grad()

    def _validated(self) -> str:
        return "" if self.last is None else f", valid {self.task.metric} {self.last[self.task.metric]:.4g}"

    def _logs(self, step: int) -> bool:
        return step % self.config.log_every == 0 or step == self.total

    def _evaluates(self, step: int) -> bool:
        every = self.config.evaluate_every or self.epoch
        return self.validates and (step % every == 0 or step == self.total)

    def _checkpoint_due(self) -> bool:
        if self.step == self.total:
            return True
        if self.config.checkpoint_every is not None:
            return self.step % self.config.checkpoint_every == 0
        return time.perf_counter() - self.saved_at > max(CHECKPOINT_SECONDS, 20 * self.save_cost)

    def _checkpoint(self) -> None:
        if self.saved == self.step:  # with the best score, just now
            return
        if self.watch.bad:  # nothing is kept of a run that has diverged since the last look
            self._diverge()
            return
        began = time.perf_counter()
        parts = {
            "model": self.trained.state_dict(), "optimiser": self.optimiser.tensors(), "watch": self.watch.tensors(),
            "carry": self.gradient.carry.tensors(),
        }  # fmt: skip
        tensors = {f"{part}:{name}": value for part, named in parts.items() for name, value in named.items()}
        facts = {"seconds": self._seconds(), "best": self.best, "last": self.last}
        facts["carry"] = self.gradient.carry.form()
        self.checkpoints.save(Checkpoint(self.step, tensors, facts), sharded=self.trainee.sharded)
        self.saved, self.saved_at = self.step, time.perf_counter()
        self.save_cost = self.saved_at - began

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "watch": {}, "carry": {}}
        for key, tensor in checkpoint.tensors.items():
            part, _, name = key.partition(":")
            parts[part][name] = tensor
        load(self.trained, parts["model"])
        self.optimiser.restore(parts["optimiser"])
        self.watch.restore(**parts["watch"])
        self.gradient.carry.restore(checkpoint.facts.get("carry"), parts["carry"], self.device)
        self.step, self.seconds_before = checkpoint.step, float(checkpoint.facts["seconds"])
        self.best, self.last = (_scores(checkpoint.facts[name]) for name in ("best", "last"))

    def _like(self, key: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """What is to hold a tensor of a checkpoint in shards: the same shards where it is a parameter or its moment."""
        part, _, name = key.partition(":")
        of = self.named.get(name if part == "model" else name.rpartition("/")[0])
        if of is None or of.shape != shape:
            return torch.empty(shape, dtype=dtype)
        return torch.empty_like(of, dtype=dtype, requires_grad=False)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _finish(self) -> TrainingResult:
        config, scores = self.config, {}
        selects = config.select == "best" and self.best is not None
        if selects:
            self.ranks.first(lambda: run_folder.restore(self.model, self.folder))
            self.ranks.share(self.model)
            self.trainee.spread()
        else:
            self._keep()
        if self.diverged is None:
            if self.validates:
                scores["valid"] = dict((self.best if selects else self.last) or {})
            if self.task.steps("test", config.batch_size):
                scores["test"] = self._scores_of("test")
        rows = [(row["step"], float(row["loss"])) for row in read_rows(self.folder) if "split" not in row]
        losses = np.array(rows, dtype=float).reshape(-1, 2)
        result = TrainingResult(
            self.folder, self.step, self._seconds(), losses, self.best, self.last, scores, self.diverged
        )
        self.ranks.first(lambda: self._write_record(result))
        return result

    def _write_record(self, result: TrainingResult) -> None:
        results: dict[str, Any] = {"steps": result.steps, "seconds": result.seconds, "best": result.best}
        results |= {"last": result.last, "scores": result.scores, "metric": self.task.metric}
        results["chance"] = self.task.chance
        record.write_record(
            self.folder,
            started=self.started,
            kind="training",
            date=datetime.date.today().isoformat(),
            config=dataclasses.asdict(self.config),
            task=self.settings["task"],
            model=self.settings["model"],
            device=str(self.device),
            threads=torch.get_num_threads(),
            ranks=self.ranks.size,
            results=results,
            diverged=None if result.diverged is None else result.diverged.plain(),
        )


def _scores(plain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Scores as a checkpoint has them, where NaN is a word."""
    if plain is None:
        return None
    return {name: value if isinstance(value, int) else float(value) for name, value in plain.items()}

"""The training loop."""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm.instruments import GradientOverWeight, gradient_over_weight
from stablessm.instruments.modes import recurrent_modules
from stablessm.tasks.base import Task
from stablessm.training import folder as run_folder
from stablessm.training.checkpoint import Checkpoint, Checkpoints
from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import DivergenceReport, Watch, diagnose
from stablessm.training.evaluate import apply, evaluate
from stablessm.training.interrupt import Interrupted, requests
from stablessm.training.metrics import Metrics
from stablessm.training.optimiser import Optimiser
from stablessm.training.result import TrainingResult
from stablessm.training.schedule import rate

CHECKPOINT_SECONDS = 60.0
"""How much work a kill can cost, or twenty times what it takes to save it; unless ``checkpoint_every`` says."""
_SEEDS = 2**31
_DROPOUT = 1 << 62
"""Apart from the seeds with which tasks order their data."""


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

    Args:
        model: from a batch's inputs to outputs, or to ``(outputs, state)`` as layers do. It ends on
            ``config.device`` with the weights that ``config.select`` says.
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
    return _Run(model, task, config, Path(folder), resume, progress, origin or {}).complete()


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
    ) -> None:
        if resume not in (True, False, "last-good"):
            raise ArgumentError("resume", "True, False or 'last-good'", repr(resume))
        run_folder.check_folder(folder)
        self.started = time.perf_counter()
        self.config, self.folder, self.progress = config, folder, progress
        self.device = config.chosen_device()
        self.model, self.task = model.to(self.device), task.to(self.device)
        batches = task.steps("train", config.batch_size)
        self.epoch, self.total = config.steps_per_epoch(batches), config.total_steps(batches)
        self.validates = task.steps("valid", config.batch_size) > 0
        self.runner = torch.compile(model) if config.compile else model
        self.optimiser, self.watch = Optimiser(model, config, self.total), Watch(self.device)
        self.recurrent = any(True for _ in recurrent_modules(model))
        self.settings = {"config": config.binding(), "task": task.describe(), "model": _signature(model)}
        self.checkpoints = Checkpoints(folder / "checkpoints", self.settings)
        self.step, self.seconds_before = 0, 0.0
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.diverged: DivergenceReport | None = None
        self.ratios: GradientOverWeight | None = None
        if resume:
            self._resume(self.checkpoints.load(last_good=resume == "last-good"))
        run_folder.claim(folder, {**self.settings, "origin": origin}, fresh=not resume)
        self.metrics = Metrics(folder, self.step)
        self.saved_at = self.mark = time.perf_counter()
        self.save_cost, self.marked = 0.0, self.step

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
        try:
            with requests() as request, torch.random.fork_rng(devices), bar:
                while self.step < self.total and self.diverged is None:
                    self._train_step()
                    bar.update()
                    self._look(bar)
                    if self.diverged is None and (self._checkpoint_due() or request.signal is not None):
                        self._checkpoint()
                    if request.signal is not None and self.diverged is None:
                        raise Interrupted(request.signal, self.step)
        finally:
            self.model.train(before)
            self.metrics.close()
        return self._finish()

    def _train_step(self) -> None:
        self.optimiser.clear()
        loss = self._loss_and_gradient(self.runner, self.step)
        norm = self.optimiser.clip()
        self.watch.see(loss, norm)
        self.ratios = None
        if self.recurrent and self._logs(self.step + 1):
            self.ratios = gradient_over_weight(self.model, recurrent_only=True)
        self.optimiser.step(self.step, self.watch.bad)
        self.step += 1

    def _loss_and_gradient(self, runner: Any, step: int) -> Tensor:
        """The loss of a step, and its gradient in the parameters: a function of the weights and the step alone."""
        torch.manual_seed(_DROPOUT + (self.config.seed % _SEEDS) * _SEEDS + step)
        epoch, index = divmod(step, self.epoch)
        total = torch.zeros((), device=self.device)
        for part in range(self.config.accumulate):
            at = index * self.config.accumulate + part
            batch = self.task.batch("train", self.config.batch_size, seed=self.config.seed, epoch=epoch, index=at)
            output = apply(runner, batch, autocast=self.config.autocast)
            loss = self.task.loss(output, batch) / self.config.accumulate
            loss.backward()
            total = total + loss.detach()
            if step == 0 and part == 0:
                silent = self.task.loss(torch.zeros_like(output), batch).detach()
                first = torch.maximum(loss.detach() * self.config.accumulate, silent)
                self.watch.start(first, self.config.explode)
        return total

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
        self.metrics.write(self.step, **row, sequences_per_second=speed)
        bar.set_postfix_str(f"loss {row['loss']:.4g}, {speed:.4g} sequences/s{self._validated()}")
        if evaluates:
            self._evaluate()
        self.mark, self.marked = time.perf_counter(), self.step

    def _evaluate(self) -> None:
        config, metric = self.config, self.task.metric
        scores: dict[str, Any] = dict(
            evaluate(self.model, self.task, "valid", config.batch_size, autocast=config.autocast)
        )
        self.metrics.write(self.step, split="valid", **scores)
        self.last = {"step": self.step, **scores}
        sign = 1 if self.task.higher_is_better else -1
        better = self.best is None or sign * scores[metric] > sign * self.best[metric]
        if better and math.isfinite(scores[metric]):
            self.best = self.last
            if config.select == "best":
                run_folder.keep(self.model, self.folder)
                self._checkpoint()

    def _diverge(self) -> None:
        """Find the step at which it happened, which left the weights as they were then, and do it again."""
        seen, limit = self.watch.values(), float(self.watch.limit)
        good = np.isfinite(seen).all(1) & (seen[:, 2] <= limit)
        first = int(np.argmin(good))
        self.step += first - len(seen)
        loss, norm, mean = seen[first].tolist()
        self.diverged = diagnose(
            self.model,
            lambda: self._loss_and_gradient(self.model, self.step),
            self.step,
            (loss, norm, mean),
            limit,
        )
        self.optimiser.clear()

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
        if self.watch.bad:  # nothing is kept of a run that has diverged since the last look
            self._diverge()
            return
        began = time.perf_counter()
        parts = {
            "model": self.model.state_dict(), "optimiser": self.optimiser.tensors(), "watch": self.watch.tensors(),
        }  # fmt: skip
        tensors = {f"{part}:{name}": value for part, named in parts.items() for name, value in named.items()}
        facts = {"seconds": self._seconds(), "best": self.best, "last": self.last}
        self.checkpoints.save(Checkpoint(self.step, tensors, facts))
        self.saved_at = time.perf_counter()
        self.save_cost = self.saved_at - began

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "watch": {}}
        for key, tensor in checkpoint.tensors.items():
            part, _, name = key.partition(":")
            parts[part][name] = tensor
        self.model.load_state_dict(parts["model"])
        self.optimiser.restore(parts["optimiser"])
        self.watch.restore(**parts["watch"])
        self.step, self.seconds_before = checkpoint.step, float(checkpoint.facts["seconds"])
        self.best, self.last = (_scores(checkpoint.facts[name]) for name in ("best", "last"))

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _finish(self) -> TrainingResult:
        config, scores = self.config, {}
        selects = config.select == "best" and self.best is not None
        if selects:
            run_folder.restore(self.model, self.folder)
        else:
            run_folder.keep(self.model, self.folder)
        if self.diverged is None:
            if self.validates:
                scores["valid"] = dict((self.best if selects else self.last) or {})
            if self.task.steps("test", config.batch_size):
                scores["test"] = evaluate(self.model, self.task, "test", config.batch_size, autocast=config.autocast)
        rows = [(row["step"], float(row["loss"])) for row in self.metrics.rows() if "split" not in row]
        losses = np.array(rows, dtype=float).reshape(-1, 2)
        result = TrainingResult(
            self.folder, self.step, self._seconds(), losses, self.best, self.last, scores, self.diverged
        )
        self._write_record(result)
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
            results=results,
            diverged=None if result.diverged is None else result.diverged.plain(),
        )


def _signature(model: nn.Module) -> dict[str, Any]:
    """What a checkpoint must fit: class, options, and the shape of every tensor."""
    config = getattr(model, "config", None)
    options: Mapping[str, Any] = {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        options = dataclasses.asdict(config)
    modules = {name or "itself": f"{type(m).__name__}({m.extra_repr()})" for name, m in model.named_modules()}
    tensors = {name: f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for name, t in model.state_dict().items()}
    count = sum(parameter.numel() for parameter in model.parameters())
    described = {"class": type(model).__name__, "parameters": count, "options": options}
    return {**described, "modules": modules, "tensors": tensors}


def _scores(plain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Scores as a checkpoint has them, where NaN is a word."""
    if plain is None:
        return None
    return {name: value if isinstance(value, int) else float(value) for name, value in plain.items()}

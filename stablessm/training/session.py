"""One model during its training: validation, metrics, selection of its best weights, and its record."""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm.instruments import GradientOverWeight
from stablessm.instruments.modes import recurrent_modules
from stablessm.tasks.base import Split, Task
from stablessm.training import folder as run_folder
from stablessm.training.average import Average
from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import BadStep, DivergenceReport, diagnose
from stablessm.training.evaluate import evaluate
from stablessm.training.gradient import Gradient
from stablessm.training.loggers import Logger, TensorBoard
from stablessm.training.metrics import Metrics, losses, read_rows
from stablessm.training.result import TrainingResult
from stablessm.training.settings import signature
from stablessm.training.steps import Hooks, StepLoop


@final
class Session(Hooks):
    """Validates one model during its training, and writes the metrics, the selected weights and the record of the model
    to its folder.

    Args:
        gradient: The :class:`Gradient` that would train this model alone; its attributes include the task, the config
            and the ranks.
        folder: Folder of this model.
        total: Number of steps of the run.
        number: Index of this model among the replicas.
        name: Name of the folder of this model in the run folder, if there are several models.
        loggers: The argument ``loggers`` of ``train``.
    """

    loop: StepLoop
    """The step loop of the training run, set before the first step."""

    def __init__(
        self,
        gradient: Gradient,
        folder: Path,
        total: int,
        *,
        number: int = 0,
        name: str = "",
        loggers: Sequence[Logger] = (),
    ) -> None:
        self.gradient, self.folder, self.total, self.number, self.name = gradient, folder, total, number, name
        self.trainee, self.config, self.ranks = gradient.trainee, gradient.config, gradient.ranks
        self.model, self.task = self.trainee.model, gradient.task
        self.validates = self.task.steps("valid", self.config.batch_size) > 0
        if self.config.patience is not None and not self.validates:
            raise ArgumentError("patience", "None for a task without a validation split", self.config.patience)
        ema, prefix = self.config.ema, f"{name}/" if name else ""
        self.average = None if ema is None else Average(self.trainee, ema, prefix)
        self._board, self._loggers = TensorBoard(), loggers
        self.recurrent = any(True for _ in recurrent_modules(self.model))
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.diverged: DivergenceReport | None = None
        self.waited = 0
        """Number of validations since the best validation."""
        self.early: int | None = None
        """The step at which early stopping ended the training run."""
        self.ratios: GradientOverWeight | None = None
        self.metrics: Metrics | None = None
        self._told, self._mode = "", self.model.training
        self.kept: str | None = None
        """SHA-256 of the weights in ``model/``."""
        self._said: str | None = None
        """SHA-256 of the metrics at the checkpoint from which the run is resumed."""

    def begin(self) -> None:
        """Open the metrics file and the loggers of this model, before the first step."""
        self.metrics = Metrics(self.folder, self.loop.step) if self.ranks.main else None
        if self.metrics is not None and self._said not in (None, self.metrics.digest):
            what = "metrics.jsonl is damaged: it is not as this run wrote it; its curves are incomplete or wrong"
            warnings.warn(f"{self.folder / 'metrics.jsonl'}: {what}", stacklevel=2)
        if self.ranks.main:
            self._board.begin(self.folder, {}, self.loop.step)
        self.mark, self.marked = time.perf_counter(), self.loop.step

    def close(self) -> None:
        """Close the files of this model, and switch it back to the mode (training or evaluation) that it had before the
        run.
        """
        self.model.train(self._mode)
        self._board.end(None)

    def looks(self, step: int) -> bool:
        """Return True if the losses are logged or the model is validated after this step, so that the CPU must read
        results.
        """
        return self._logs(step) or self._evaluates(step)

    def clipped(self, step: int) -> None:
        """Compute |gradient| / |weight| of the recurrent parameters, if this step will be logged."""
        self.ratios = self.trainee.ratios() if self.recurrent and self._logs(step + 1) and not self.stopped else None

    def updated(self, step: int) -> None:
        """Update the averaged weights. Then look for a divergence; on a GPU, do so only at steps at which the CPU reads
        results.
        """
        if self.average is not None and not self.stopped:
            self.average.update(step)
        if self.gradient.task.device.type == "cpu" or self.looks(step):
            self.saving()

    def saving(self) -> None:
        """Look for a divergence before a checkpoint is written, so that weights after a divergence are never stored."""
        if self.stopped:
            return
        found = self.loop.watch.first_bad(self.number)
        if found is not None:
            self._diverge(self.loop.step - found[0], found[1])

    def looked(self, step: int) -> None:
        """Log the losses since the last call, and validate the model if a validation is due."""
        if self.stopped:
            return
        seen = self.loop.watch.values()
        found, norms = seen.reshape(len(seen), 3, -1)[:, :2, self.number].T
        count = (step - self.marked) * self.config.accumulate * self.config.batch_size
        speed = count / (time.perf_counter() - self.mark)
        row: dict[str, Any] = {"epoch": step / self.gradient.epoch, "loss": float(found.mean())}
        rate = self.config.lr * self.config.rates(self.total)(step - 1)
        row |= {"gradient_norm": float(norms.max()), "lr": rate}
        if self.ratios is not None:
            by_name = {name: entry.maximum for name, entry in self.ratios.parameters.items()}
            row |= {"gradient_over_weight": self.ratios.maximum, "gradient_over_weight_of": by_name}
        self._say(**row, sequences_per_second=speed)
        self._told = f"loss {row['loss']:.4g}, {speed:.4g} sequences/s"
        if self.last is not None:
            self._told += f", valid {self.task.metric} {self.last[self.task.metric]:.4g}"
        if self._evaluates(step):
            self._evaluate()
        self.mark, self.marked = time.perf_counter(), step

    @property
    def stopped(self) -> bool:
        """True if this model has diverged, or early stopping has ended its training."""
        return self.lost or self.early is not None

    @property
    def lost(self) -> bool:
        """True if the training run of this model has diverged."""
        return self.diverged is not None

    def told(self) -> str:
        """Return the text to show next to the progress bar: loss, speed and validation score."""
        return self._told

    def facts(self) -> dict[str, Any]:
        """Return plain values for a checkpoint: the scores, and the step of a divergence or of an early stop."""
        found: dict[str, Any] = {"best": self.best, "last": self.last, "kept": self.kept}
        found["metrics"] = None if self.metrics is None else self.metrics.digest
        found |= {"waited": self.waited, "early": self.early}
        if self.diverged is not None:
            names = ("step", *(field.name for field in dataclasses.fields(BadStep)))
            found["diverged"] = {name: getattr(self.diverged, name) for name in names}
        return found

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore scores and averaged weights from a checkpoint; if the run had diverged, search for the
        cause again.
        """
        self.best, self.last = (_scores(facts[name]) for name in ("best", "last"))
        self.kept, self._said = facts.get("kept"), facts.get("metrics")
        self.waited, patience = int(facts.get("waited", 0)), self.config.patience
        self.early = facts.get("early") if patience is not None and self.waited >= patience else None
        if self.average is not None:
            self.average.restore(tensors)
        if self.name and facts.get("early") is not None and not self.stopped:
            self.loop.watch.bad[self.number] = 0
        bad = facts.get("diverged")
        if bad is not None:
            values = {name: float(value) for name, value in bad.items() if name != "step"}
            self._diverge(int(bad["step"]), BadStep(**values))

    def wait_again(self) -> None:
        """Undo an early stop, so that an extended run continues; ``patience`` is counted from zero again."""
        if self.early is not None:
            self.early, self.waited = None, 0
            if self.name:
                self.loop.watch.bad[self.number] = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return the averaged weights by name, to be stored in a checkpoint."""
        return {} if self.average is None else self.average.tensors()

    def _diverge(self, step: int, bad: BadStep) -> None:
        """Repeat the step that diverged, whose update was not applied, and store a report on the cause."""
        self.trainee.collect()
        carried = self.gradient.carry.everyone()
        self.diverged = diagnose(self.model, lambda: self.gradient.replay(step, carried), step, bad)
        self.model.zero_grad()

    @property
    def selects(self) -> bool:
        """True if ``model/`` in the run folder contains the weights with the best score so far."""
        return self.config.select == "best" and self.best is not None

    def check_kept(self, *, last_good: bool) -> None:
        """Raise an error if the stored best weights are damaged or, at the end of the run, of another model; with
        ``last_good``, warn and discard these weights instead.

        Before the end, the weights may be newer than the checkpoint, and the remaining steps write them again.
        """
        kept = self.kept if self.stopped or self.loop.step == self.total else None
        try:
            if self.selects:
                self.ranks.first(lambda: run_folder.check_kept(self.folder, kept))
        except (ArgumentError, RuntimeError) as error:  # the first on rank 0, the second on the other ranks
            if not last_good:
                raise
            warnings.warn(f"{error}. The score of these weights is dropped", stacklevel=2)
            self.best = self.kept = None

    def finish(self) -> TrainingResult:
        """Select the final weights of this model, score them, write the record, and return the result."""
        config, scores = self.config, {}
        selects = self.selects
        if selects:
            self.ranks.first(lambda: run_folder.restore(self.model, self.folder, self.kept))
            self.ranks.share(self.model)
            self.trainee.spread()
        else:
            if self.average is not None and not self.lost:
                self.average.apply()
            self._keep()
        if self.diverged is None:
            if self.validates:
                scores["valid"] = dict((self.best if selects else self.last) or {})
            if self.task.steps("test", config.batch_size):
                scores["test"] = self._scores_of("test")
        step = (self.early or self.loop.step) if self.diverged is None else self.diverged.step
        seen, seconds = losses(read_rows(self.folder)), self.loop.seconds
        result = TrainingResult(
            self.folder, step, seconds, seen, self.best, self.last, scores, self.diverged,
            early=None if self.early is None else self._told_early(), history=tuple(self.loop.history),
        )  # fmt: skip
        model, ranks = signature(self.model), self.ranks
        ranks.first(lambda: write_record(result, config, self.task, model, self.loop, ranks.size, self))
        return result

    def _evaluate(self) -> None:
        """Score the weights (or their average) on the validation split, and store them if the score is
        the best so far.
        """
        metric = self.task.metric
        with nullcontext() if self.average is None else self.average.applied():
            scores = self._scores_of("valid")
            self._say(split="valid", **scores)
            self.last = {"step": self.loop.step, **scores}
            sign = 1 if self.task.higher_is_better else -1
            better = self.best is None or sign * scores[metric] > sign * self.best[metric]
            self.waited += 1
            if better and math.isfinite(scores[metric]):
                self.best, self.waited = self.last, 0
                if self.config.select == "best":
                    self._keep()
                    self.loop.checkpoint_due = True
        patience = self.config.patience
        if patience is not None and self.waited >= patience and self.loop.step < self.total:
            self.early = self.loop.step
            if self.name:  # the other models continue; updates of this model are skipped
                self.loop.watch.bad[self.number] = 1

    def _told_early(self) -> str:
        best = "" if self.best is None else f" since step {self.best['step']}"
        return f"stopped early: valid {self.task.metric} has not improved in {self.waited} validations{best}"

    def _scores_of(self, split: Split) -> dict[str, Any]:
        size, autocast = self.config.batch_size, self.config.autocast
        return dict(evaluate(self.trainee.trained, self.task, split, size, autocast=autocast, ranks=self.ranks))

    def _keep(self) -> None:
        self.trainee.collect()
        self.ranks.first(self._write_model)

    def _write_model(self) -> None:
        self.kept = run_folder.keep(self.model, self.folder)

    def _say(self, **values: Any) -> None:
        if self.metrics is None:
            return
        self.metrics.write(self.loop.step, **values)
        for logger in (self._board, *self._loggers):
            logger.log(self.loop.step, {**values, **({"replica": self.number} if self.name else {})})

    def _logs(self, step: int) -> bool:
        return step % self.config.log_every == 0 or step == self.total

    def _evaluates(self, step: int) -> bool:
        every = self.config.evaluate_every or self.gradient.epoch
        return self.validates and (step % every == 0 or step == self.total)


def write_record(
    result: TrainingResult,
    config: TrainingConfig,
    task: Task,
    model: Mapping[str, Any],
    loop: StepLoop,
    ranks: int,
    session: Session | None = None,
) -> None:
    """Write ``record.json`` of a run from its result and settings, with the checksums of the files that the ``session``
    of a single model wrote.
    """
    results: dict[str, Any] = {"steps": result.steps, "seconds": result.seconds, "best": result.best}
    results |= {"last": result.last, "scores": result.scores, "metric": task.metric, "chance": task.chance}
    results |= {"early": result.early, "planned": loop.total}
    metrics = None if session is None else session.metrics
    if session is not None:
        results |= {"settings": record.digest_of(result.folder / run_folder.MARKER), "weights": session.kept}
    if result.replicas:
        results["replicas"] = [{"folder": one.folder.name, "scores": one.scores} for one in result.replicas]
    record.write_record(
        result.folder,
        started=loop.started,
        kind="training",
        date=datetime.date.today().isoformat(),
        config=dataclasses.asdict(config),
        task=task.describe(),
        model=model,
        device=str(task.device),
        threads=torch.get_num_threads(),
        ranks=ranks,
        results=results,
        history=loop.history,
        files={} if metrics is None else {"metrics.jsonl": metrics.digest},
        diverged=None if result.diverged is None else result.diverged.plain(),
    )


def _scores(plain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Convert the scores in a checkpoint, in which NaN and infinity are texts, to numbers."""
    if plain is None:
        return None
    return {name: value if isinstance(value, int) else float(value) for name, value in plain.items()}

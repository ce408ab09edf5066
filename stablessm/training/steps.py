"""The loop over training steps: gradient, clipping, detection of divergence, update, checkpoint."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from stablessm import _progress
from stablessm._errors import ArgumentError
from stablessm._renamed import NAMES
from stablessm.training.checkpoint import Checkpoint, Checkpoints, whole_on_cpu
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Strategy
from stablessm.training.interrupt import Interrupted, requests
from stablessm.training.optimizer import Optimizer
from stablessm.training.ranks import Ranks
from stablessm.training.trainee import load

_VIEW = "FSDP2-wrapped module .* returned a view tensor"
"""Warning that is silenced: the state of a block is a view, but nothing changes this view in place."""


class Hooks:
    """The base class of objects whose methods :class:`StepLoop` calls between the parts of a training step. Checkpoints
    store the state of these objects.
    """

    name = ""
    """Key of the hook's facts in a checkpoint; without a name they are merged with the facts of the loop."""

    def computed(self, step: int) -> None:
        """React to the gradient of a step; called after the gradient has been computed."""

    def clipped(self, step: int) -> None:
        """React to the clipped gradient; called after its norm has been checked for divergence."""

    def updated(self, step: int) -> None:
        """React to an update of the weights; ``step`` is the number of updates so far."""

    def looked(self, step: int) -> None:
        """React to the losses of the steps since the previous call of this method; called before the recorded losses
        are deleted.
        """

    def saving(self) -> None:
        """Prepare for a checkpoint; called before a checkpoint is written."""

    @property
    def stopped(self) -> bool:
        """True if this hook wants to stop the training early. The loop ends when ``stopped`` is True for all hooks."""
        return False

    @property
    def lost(self) -> bool:
        """True if the weights are useless after a divergence. If ``lost`` is True for all hooks, no checkpoint is
        written.
        """
        return self.stopped

    def told(self) -> str:
        """Return a text for the progress bar."""
        return ""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint stores for this hook, by name."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return plain values that a checkpoint stores for this hook."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the state of the hook from the tensors and values that a checkpoint stored."""


@final
class Cadence:
    """Decides when a checkpoint is due: after every ``steps`` steps or, by default, when ``seconds`` have passed.

    The time between checkpoints is at least 20 times the time that writing a checkpoint takes.
    """

    def __init__(self, steps: int | None = None, seconds: float = 60.0) -> None:
        self.steps, self.seconds, self.cost, self.last = steps, seconds, 0.0, time.perf_counter()

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after a step."""
        if self.steps is not None:
            return step % self.steps == 0
        return time.perf_counter() - self.last > max(self.seconds, 20 * self.cost)

    def wrote(self, began: float) -> None:
        """Record that a checkpoint was written; ``began`` is the time at which writing began."""
        self.last = time.perf_counter()
        self.cost = self.last - began


class StepLoop:
    """The loop over the training steps of one model or of a stack of models.

    Args:
        trained: The module whose parameters are updated.
        strategy: Computes the gradient of a step.
        optimizer: Updates the parameters.
        watch: Detects divergence.
        total: Number of steps.
        hooks: Callbacks between the parts of a step.
        look: Function that takes the number of steps so far, and returns True if the host reads results (such as
            losses) from the device after this step.
        checkpoints: Writer of checkpoints; with None, no checkpoints are written.
        cadence: Decides when checkpoints are written.
        sharded: Whether every rank has a part of ``trained``.
    """

    def __init__(
        self,
        trained: nn.Module,
        strategy: Strategy,
        optimizer: Optimizer,
        watch: Watch,
        total: int,
        hooks: Sequence[Hooks] = (),
        *,
        look: Callable[[int], bool],
        checkpoints: Checkpoints | None = None,
        cadence: Cadence | None = None,
        sharded: bool = False,
    ) -> None:
        self.trained, self.strategy, self.optimizer, self.watch = trained, strategy, optimizer, watch
        self.total, self.hooks, self.checkpoints, self.sharded = total, hooks, checkpoints, sharded
        self.ranks = Ranks() if checkpoints is None else checkpoints.ranks
        self.cadence, self.look = cadence or Cadence(), look
        device = next(trained.parameters()).device
        self._gpus = [device] if device.type == "cuda" else []
        self.step, self.saved = 0, -1
        self.history: list[Any] = []
        """Events for the record: the source of the initial weights, and settings that changed during the run."""
        self.checkpoint_due = False
        """Set by a hook to request a checkpoint after this step."""
        self.started, self.seconds_before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Training time in seconds, summed over all parts of an interrupted run, each up to its last checkpoint."""
        return self.seconds_before + time.perf_counter() - self.started

    def run(self, *, progress: bool = False, name: str | None = None) -> None:
        """Run the remaining steps. At SIGINT or SIGTERM, write a checkpoint and raise ``Interrupted``."""
        bar = _progress.bar(progress, total=self.total, initial=self.step, desc=name, unit="step", mininterval=0.5)
        if progress and self.step:
            bar.write(f"resuming after step {self.step} of {self.total}")
        with requests() as request, torch.random.fork_rng(self._gpus), warnings.catch_warnings(), bar:
            warnings.filterwarnings("ignore", _VIEW)
            while self.step < self.total and not self._stopped:
                self._advance()
                bar.update()
                self._look()
                bar.set_postfix_str(self.hooks[0].told() if self.hooks else "", refresh=False)
                self._leave_checkpoint(request.signal)

    def checkpoint(self) -> None:
        """Write a checkpoint, unless one has already been written after this step."""
        if self.saved == self.step or self.checkpoints is None:
            return
        for hook in self.hooks:
            hook.saving()
        if self._lost:
            return
        began = time.perf_counter()
        parts = {
            "model": self.trained.state_dict(), "optimizer": self.optimizer.tensors(), "watch": self.watch.tensors(),
            "carry": self.strategy.tensors(), "hooks": _merged(hook.tensors() for hook in self.hooks),
        }  # fmt: skip
        tensors = {f"{part}:{name}": value for part, named in parts.items() for name, value in named.items()}
        facts: dict[str, Any] = {"seconds": self.seconds, "carry": self.strategy.facts(), "history": self.history}
        facts |= _merged({hook.name: hook.facts()} if hook.name else hook.facts() for hook in self.hooks)
        self.checkpoints.save(Checkpoint(self.step, tensors, facts), sharded=self.sharded)
        self.saved = self.step
        self.cadence.wrote(began)

    def resume(self, *, last_good: bool = False) -> bool:
        """Resume from the last checkpoint, if there is one; return True if settings have changed since the checkpoint.
        With ``last_good``, damaged checkpoints are skipped.
        """
        found = None if self.checkpoints is None else self.checkpoints.load(last_good=last_good, like=self._like)
        if found is None:
            return False
        if found.step > self.total:
            raise ArgumentError("steps", f"at least the {found.step} steps that the run has made", self.total)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "watch": {}, "carry": {}, "hooks": {}}
        for key, tensor in found.tensors.items():
            part, _, name = key.partition(":")
            parts[NAMES.get(part, part)][name] = tensor
        load(self.trained, parts["model"])
        self.optimizer.restore(parts["optimizer"])
        self.watch.restore(**parts["watch"])
        self.strategy.restore(found.facts.get("carry"), parts["carry"])
        self.step, self.seconds_before = found.step, float(found.facts["seconds"])
        changed = {name.removeprefix("config."): list(pair) for name, pair in found.changed.items()}
        self.history = [*found.facts.get("history", ())]
        if changed:
            self.history.append({"step": self.step, "changed": changed})
        with torch.random.fork_rng(self._gpus):
            for hook in self.hooks:
                hook.restore(parts["hooks"], found.facts[hook.name] if hook.name else found.facts)
        return bool(changed)

    def _advance(self) -> None:
        self.optimizer.clear()
        loss = self.strategy.compute(self.step)
        for hook in self.hooks:
            hook.computed(self.step)
        norm = self.optimizer.clip()
        self.watch.see(loss, norm)
        self.strategy.settle(self.watch.bad)
        for hook in self.hooks:
            hook.clipped(self.step)
        self.optimizer.step(self.step, self.watch.bad)
        self.strategy.updated()
        self.step += 1

    def _look(self) -> None:
        for hook in self.hooks:
            hook.updated(self.step)
        if self.look(self.step) and not self._stopped:
            for hook in self.hooks:
                hook.looked(self.step)
            self.watch.clear()

    def _leave_checkpoint(self, signal: int | None) -> None:
        wanted = self.checkpoint_due or self._stopped or self.step == self.total or self.cadence.due(self.step)
        number, due = self.ranks.highest(signal or 0, self.ranks.main and wanted)
        self.checkpoint_due = False
        if (due or number) and not self._lost:
            self.checkpoint()
        if number and not self._stopped:
            raise Interrupted(number, self.step)

    @property
    def _stopped(self) -> bool:
        return bool(self.hooks) and all(hook.stopped for hook in self.hooks)

    @property
    def _lost(self) -> bool:
        return bool(self.hooks) and all(hook.lost for hook in self.hooks)

    def _like(self, key: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Create the tensor into which a tensor of a sharded checkpoint is read. The tensor is sharded if ``key`` names
        a parameter or its moments.
        """
        part, _, name = key.partition(":")
        of = dict(self.trained.named_parameters()).get(name if part == "model" else name.rpartition("/")[0])
        if of is None or of.shape != shape:
            return whole_on_cpu(key, shape, dtype)
        return torch.empty_like(of, dtype=dtype, requires_grad=False)


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}

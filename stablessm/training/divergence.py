"""Detection of divergence in a training run, and a search for its cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.instruments import Divergence, gradient_over_weight, report_modes, trace_divergence
from stablessm.instruments.modes import Mode, mapped_weight, recurrent_modules

_LIMITS = (None, 1e30, 1e24, 1e18, 1e12, 1e9, 1e6, 1e4, 1e3)
"""Thresholds for ``stablessm.trace_divergence``, tried in order until a value exceeds one. None means: not finite."""
_MEMORY = 10.0
"""Time constant, in steps, of the running mean of the loss."""
_SLOWER = "lower the learning rate (recurrent_lr for the recurrent parameters alone), or warm up for longer"


@final
@dataclass(frozen=True)
class BadStep:
    """Loss and gradient norm of the step at which a training run diverged, as recorded by :class:`Watch`."""

    loss: float
    gradient_norm: float
    mean_loss: float
    limit: float


@final
@dataclass(frozen=True, repr=False)
class DivergenceReport(Result):
    """A report on a run that diverged: the violated limit, the probable cause and a remedy."""

    step: int
    """Number of updates made before the step that diverged, which was not applied."""
    loss: float
    mean_loss: float
    """Running mean of the loss over about ten steps."""
    gradient_norm: float
    limit: float
    """Upper limit of the mean loss: ``explode`` times the first loss (or times the loss of zero outputs, if larger)."""
    trace: Divergence | None
    """The first bad value of that step, from ``stablessm.trace_divergence``; None if no value is above 1000."""
    mode: Mode | None
    """Recurrent mode that probably caused the divergence: from ``trace``, or with the largest |gradient|/|weight|."""
    pushed: float | None
    """|gradient|/|weight| of ``mode``, if ``mode`` was chosen by this ratio."""

    @property
    def rule(self) -> str:
        """A sentence that states which limit was exceeded, with the numbers."""
        if not math.isfinite(self.loss):
            return f"the loss is {self.loss}"
        if not math.isfinite(self.gradient_norm):
            return f"the norm of the gradient is {self.gradient_norm}"
        return f"the loss is {self.loss:.4g}, its mean over ten steps {self.mean_loss:.4g}, above {self.limit:.4g}"

    @property
    def remedy(self) -> str:
        """Advice on how to avoid the divergence, as text."""
        return _SLOWER if self.trace is None or self.pushed is not None else self.trace.remedy

    def __str__(self) -> str:
        lines = [f"diverged at step {self.step}: {self.rule}"]
        if self.trace is not None:
            lines.append(str(self.trace))
        if self.pushed is not None:
            lines.append(f"largest |gradient|/|w| of a mode, {self.pushed:.3g}: {self.mode}")
        return "\n".join([*lines, f"remedy: {self.remedy}"])

    def plain(self) -> dict[str, Any]:
        """Return the report as a dictionary of plain values, for the record of the run."""
        return {**asdict(self), "rule": self.rule, "remedy": self.remedy, "text": str(self)}


@final
class Watch:
    """Records losses and gradient norms on the GPU, without making the CPU wait, and detects steps at which training
    diverges.

    A step is bad if its loss or gradient norm is not finite, or if the running mean of the loss is above the limit. In
    this mean, the weight of each loss decreases by a tenth per step, so a single loss may be up to about ten times the
    limit. From a bad step on, ``bad`` is 1, which makes a fused optimizer skip its updates, so that the weights stay as
    they were at the bad step.

    Args:
        replicas: Number of models that are trained as one computation. Losses, norms and ``bad`` then have the shape
            (replicas,).
        forgiving: If True, a step is bad only if its gradient is not finite, and only the update of this step is
            skipped.

    >>> watch = Watch(torch.device("cpu"))
    >>> watch.start(torch.tensor(1.0), explode=10.0)
    >>> for loss in (1.0, 50.0, 1.0):
    ...     watch.see(torch.tensor(loss), torch.tensor(1.0))
    >>> calm = bool(watch.bad)
    >>> watch.see(torch.tensor(200.0), torch.tensor(1.0))
    >>> calm, bool(watch.bad)
    (False, True)
    """

    def __init__(self, device: torch.device, replicas: int | None = None, *, forgiving: bool = False) -> None:
        shape = () if replicas is None else (replicas,)
        self.bad = torch.zeros(shape, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.limit = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        self.forgiving = forgiving
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.means: list[Tensor] = []

    def start(self, loss: Tensor, explode: float) -> None:
        """Set the limit that the mean loss may not exceed to ``explode`` times the initial loss."""
        self.mean, self.limit = loss.double(), explode * loss.double()

    def see(self, loss: Tensor, norm: Tensor) -> None:
        """Record the loss and the gradient norm of a step; set ``bad`` if a number is not finite or the mean loss is
        too high.
        """
        self.mean = torch.lerp(self.mean, loss.double(), 1 / _MEMORY)
        for seen, value in ((self.losses, loss), (self.norms, norm), (self.means, self.mean)):
            seen.append(value.double())
        if self.forgiving:
            self.bad = 1 - norm.isfinite().float()
            return
        good = self.mean.isfinite() & (self.mean <= self.limit) & norm.isfinite()
        self.bad = torch.maximum(self.bad, 1 - good.float())

    def values(self) -> np.ndarray:
        """Return the recorded losses, gradient norms and running means of the losses, as an array (steps, 3) or, for
        several models, (steps, 3, replicas).

        The CPU waits until the GPU has computed these numbers.
        """
        return torch.stack([self._stacked(seen) for seen in (self.losses, self.norms, self.means)], 1).cpu().numpy()

    def first_bad(self, replica: int = 0) -> tuple[int, BadStep] | None:
        """Return how many steps ago the first bad step of a model was, and the loss and gradient norm of this step;
        None if no step was bad.
        """
        if not self.bad.flatten()[replica]:
            return None
        seen = self.values().reshape(len(self.losses), 3, -1)[..., replica]
        limit = float(self.limit.flatten()[replica])
        first = int(np.argmin(np.isfinite(seen).all(1) & (seen[:, 2] <= limit)))
        loss, norm, mean = seen[first].tolist()
        return len(seen) - first, BadStep(loss, norm, mean, limit)

    def clear(self) -> None:
        """Delete the recorded losses and norms; called after the CPU has read these numbers."""
        self.losses, self.norms, self.means = [], [], []

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store in a checkpoint, by name."""
        seen = {"losses": self.losses, "norms": self.norms, "means": self.means}
        found = {"limit": self.limit, "mean": self.mean} | {name: self._stacked(part) for name, part in seen.items()}
        return found | ({"bad": self.bad} if self.bad.dim() else {})

    def restore(
        self, *, limit: Tensor, mean: Tensor, losses: Tensor, norms: Tensor, means: Tensor, bad: Tensor | None = None
    ) -> None:
        """Restore the state from the tensors of a checkpoint."""
        self.limit, self.mean = limit.to(self.limit), mean.to(self.mean)
        self.bad = self.bad if bad is None else bad.to(self.bad)
        self.losses, self.norms, self.means = ([*part.to(self.bad.device)] for part in (losses, norms, means))

    def _stacked(self, seen: list[Tensor]) -> Tensor:
        return torch.stack(seen) if seen else self.limit.new_zeros(0, *self.limit.shape)


def diagnose(model: nn.Module, replay: Callable[[], object], step: int, bad: BadStep) -> DivergenceReport:
    """Repeat the step that diverged, and report which recurrent mode probably caused the divergence.

    Args:
        replay: Function that computes the loss of the step and its gradients with the current weights of the model.
        step: Number of the step.
        bad: Loss and gradient norm of the step.
    """
    trace = None
    for threshold in _LIMITS:
        model.zero_grad()
        with trace_divergence(model, when="record", limit=threshold) as watching:
            replay()
        trace = watching.report
        if trace is not None:
            break
    mode, pushed = (None, None) if trace is None else (trace.mode, None)
    if mode is None and (trace is None or trace.phase != "input"):
        mode, pushed = _pushed_hardest(model)
    return DivergenceReport(step, bad.loss, bad.mean_loss, bad.gradient_norm, bad.limit, trace, mode, pushed)


def _pushed_hardest(model: nn.Module) -> tuple[Mode, float] | tuple[None, None]:
    """Return the recurrent mode with the largest |gradient|/|weight| and this ratio; (None, None)
    without a recurrence.
    """
    weights = {name: mapped_weight(module) for name, module in recurrent_modules(model)}
    try:
        modes, ratios = report_modes(model), gradient_over_weight(model, recurrent_only=True)
    except (ArgumentError, RuntimeError):  # no recurrence, no gradient, or weights too bad for eigenvalues
        return None, None
    worst: tuple[float, str, tuple[int, ...]] | None = None
    for name, own in weights.items():
        entry = ratios.parameters.get(f"{name}.{own}".lstrip("."))
        if own is None or entry is None or entry.ratio is None:
            continue
        flat = entry.ratio.nan_to_num(nan=torch.inf).flatten()
        at = int(flat.argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), entry.ratio.shape))
        if worst is None or float(flat[at]) > worst[0]:
            worst = float(flat[at]), name, index
    for i in range(len(modes)):
        if worst is not None and (str(modes.module[i]), modes.index[i]) == worst[1:]:
            return modes[i], worst[0]
    return None, None

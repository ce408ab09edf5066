"""The receptive field of a model: the past inputs on which its outputs depend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._checked import Part, Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, quoted
from stablessm._progress import working
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.dynamics._flow import Flow, flow

By: TypeAlias = Literal["gradient", "ablation"]
ROWS = 64
"""Number of sequences that run at once."""

POSITIONS = 16
"""Number of positions of each sequence whose outputs are differentiated."""

REPLACED = 128
"""Number of inputs of each sequence that are replaced, one at a time."""

PROBES = 8
"""Number of outputs, or of random combinations of more outputs, that are differentiated."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class ReceptiveField(Result):
    """The result of :func:`receptive_field`: the influence of past inputs on the outputs of a model, by lag."""

    _drawn = ("lag", "ablation")
    lag: np.ndarray
    """Number of steps between the input and the output (K,); 0 is the current input."""
    gradient: np.ndarray | None
    """Root mean square of |∂y[t] / ∂x[t - lag]| (K,); None for a model that PyTorch cannot differentiate."""
    ablation: np.ndarray
    """Root mean square change of y[t] if x[t - lag] is replaced by an input of another step (K,), relative to the
    standard deviation of the outputs."""
    positions: int
    """Number of outputs that were averaged for the first lag."""
    beyond: float = 0.0
    """Largest influence of an input at a lag of K or more, by ablation."""

    def reach(self, level: Part = 0.01, by: By = "ablation") -> int:
        """Return the number of latest inputs that matter: the influence of all earlier inputs is at most ``level``
        times the largest influence.

        ``by`` selects the measure of influence. If an input at a lag beyond the K measured lags has a larger influence,
        the result is K, a lower bound.

        >>> ReceptiveField(np.arange(4), None, np.array([1.0, 0.5, 0.25, 0.0]), 1).reach()
        3
        """
        values = getattr(self, by)
        if values is None:
            raise ArgumentError("by", "'ablation', since the model has no gradient", quoted(by))
        if self._goes_on(level):
            return len(values)
        above = np.flatnonzero(values > level * values.max())
        return int(above[-1]) + 1 if len(above) else 0

    def _goes_on(self, level: float) -> bool:
        return self.beyond > level * max(self.beyond, self.ablation.max())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot both measures of influence against the lag, relative to their largest values."""
        ax = axes_or_new(ax)
        for name, values in (("gradient", self.gradient), ("ablation", self.ablation)):
            if values is not None and values.max() > 0:
                ax.semilogy(self.lag, np.where(values > 0, values, np.nan) / values.max(), label=name)
        ax.set(xlabel="lag in steps", ylabel="influence, relative")
        ax.legend()
        return ax

    def __str__(self) -> str:
        by = "" if self.gradient is None else f", {self.reach(by='gradient')} by gradients"
        least = "at least the latest" if self._goes_on(0.01) else "the latest"
        return f"{least} {self.reach()} inputs by ablation{by} (influence above 1 % of the largest)"


@checked
def receptive_field(
    model: Any, inputs: Tensor | ArrayLike, *, lags: Size | None = None, seed: Seed = 0, progress: bool = True
) -> ReceptiveField:
    """Measure on which past inputs the outputs of a causal model depend, along given inputs.

    Two measures are returned. Gradients show the effect of small changes: the size of the Jacobian matrix of y[t] with
    respect to x[t - k], averaged over t. Ablation shows the effect of real changes: x[t - k] is replaced by the input
    of another step, which also works for models without gradients. The two differ for a saturated gate, which has no
    gradient but a large effect.

    Args:
        model, inputs: as for :func:`stablessm.effective_state_size`.
        lags: Number of lags, beginning with 0 (default: half of the time).
        seed: Seed of the replaced steps and of random combinations of outputs.
        progress: Whether a long computation shows a progress bar.

    >>> mean = torch.nn.AvgPool1d(3, 1)
    >>> found = receptive_field(lambda x: mean(torch.nn.functional.pad(x.mT, (2, 0))).mT, torch.randn(50))
    >>> found.reach(), found.reach(by="gradient")
    (3, 3)
    """
    generator = torch.Generator().manual_seed(seed)
    with flow(model, inputs, precise=False) as found, working("receptive_field", progress) as tell:
        length = found.x.shape[1]
        count = max(1, length // 2) if lags is None else whole_number("lags", lags, 1, length + 1)
        if bool((found.x == found.x[:, :1]).all()):
            raise ArgumentError("inputs", "inputs that vary, since each is replaced by another one", "a constant")
        with torch.no_grad():
            ablation = _ablation(found, length, generator, tell)
        gradient = _gradient(found, count, generator, tell)
    beyond = float(ablation[count:].max(initial=0.0))
    return ReceptiveField(np.arange(count), gradient, ablation[:count], len(found.x) * min(length, REPLACED), beyond)


def _ablation(found: Flow, count: int, generator: torch.Generator, tell: Callable[[], object]) -> np.ndarray:
    """Replace inputs, one at a time, and return the relative change of the outputs at each of ``count`` lags.

    ``tell`` is called from time to time, to show progress.
    """
    length = found.x.shape[1]
    squares, numbers = np.zeros(count), np.zeros(count)
    spread = 0.0
    for x in found.x:
        y = found.run(x[None], None)[0][0].double()
        spread += float((y - y.mean(0)).square().sum(-1).mean()) / len(found.x)
        chosen = torch.randperm(length, generator=generator)[:REPLACED].sort().values
        for steps in chosen.split(ROWS):
            others = torch.randint(0, length, (len(steps),), generator=generator)
            rows = x.repeat(len(steps), 1, 1)
            rows[torch.arange(len(steps)), steps] = x[others]
            changed = (found.run(rows, None)[0].double() - y).square().sum(-1)
            for row, start in zip(changed.cpu().numpy(), steps.tolist(), strict=True):
                stop = min(count, length - start)
                squares[:stop] += row[start : start + stop]
                numbers[:stop] += 1
            tell()
    return np.sqrt(squares / np.maximum(numbers, 1) / (spread or 1.0))


def _gradient(found: Flow, count: int, generator: torch.Generator, tell: Callable[[], object]) -> np.ndarray | None:
    """Return the size of the derivative of the outputs with respect to the input at each lag below ``count``.

    Returns None if the model cannot be differentiated, such as a function of arrays.
    """
    length = found.x.shape[1]
    positions = torch.linspace(min(count, length) - 1, length - 1, POSITIONS).long().unique()
    squares = np.zeros(count)
    for sequence in found.x:
        x = sequence[None].detach().clone().requires_grad_()
        with torch.enable_grad():
            try:
                y = found.run(x, None)[0]
            except (RuntimeError, TypeError):  # a function of arrays
                return None
        if not y.requires_grad:
            return None
        probes = _probes(y.shape[-1], generator).to(y)
        for t in positions.tolist():
            for probe in probes:
                try:
                    (slope,) = torch.autograd.grad(y[0, t] @ probe, x, retain_graph=True, materialize_grads=True)
                except RuntimeError:  # an operation without a derivative
                    return None
                size = slope[0].double().square().sum(-1).cpu().numpy()[: t + 1][::-1][:count]
                squares[: len(size)] += size / (len(positions) * len(found.x))
            tell()
    return np.sqrt(squares)


def _probes(width: int, generator: torch.Generator) -> Tensor:
    """Return the combinations of outputs that are differentiated, as a matrix (number, width).

    These are all single outputs or, if there are many, some random combinations.
    """
    if width <= PROBES:
        return torch.eye(width)
    return torch.randn(PROBES, width, generator=generator) / PROBES**0.5

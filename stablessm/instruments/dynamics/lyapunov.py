"""Lyapunov exponents: rates at which small differences between two states grow or shrink along a trajectory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._checked import Positive, Seed, Size, checked
from stablessm._display import Result
from stablessm._progress import working
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.dynamics._cocycle import Growth, eigenvalue_logs
from stablessm.instruments.dynamics._pushing import pusher
from stablessm.instruments.dynamics._stepping import stepper
from stablessm.instruments.dynamics._trajectories import Trajectories

PIECES = 8
"""Number of pieces of time whose averages give the standard error."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class LyapunovSpectrum(Result):
    """The result of :func:`lyapunov_spectrum`: the Lyapunov exponents of a model, with error estimates."""

    exponents: np.ndarray
    """Exponents (k,) in descending order, per unit of time; -inf for directions that vanish in finitely many steps."""
    error: np.ndarray
    """(k,) half the width of a band of about 95 %: two standard errors, plus the error of a finite trajectory if the
    growth per step approaches its limit as slowly as 1/t, or if changes grow in proportion to t; 0 if the exponents are
    exact."""
    verdict: str
    """``contracting``, ``marginal`` or ``expanding``, by the sign of the largest exponent."""
    evidence: str
    """Explains the verdict, with numbers."""
    dimension: float
    """Kaplan–Yorke dimension of the attractor; nan if too few exponents are known."""
    growth: float
    """Largest factor by which a small change grows before it decays; infinite if the model is expanding."""
    growth_time: float
    """Time after which the factor ``growth`` is reached."""
    merged: float | None
    """Largest remaining distance between trajectories from different states under the same inputs, as a fraction of
    their initial distance; None without inputs. A value near 0 means that the inputs determine the state (the echo
    state property)."""
    history: np.ndarray
    """Estimates of the exponents after each piece of the trajectories (pieces, k)."""
    state_size: int
    """Number of real values in the state; a complex value counts twice and has two equal exponents."""
    steps: int
    """Number of steps of all trajectories together."""
    trajectories: int
    dt: float
    method: str
    """Describes how the exponents and derivatives were computed."""

    @property
    def largest(self) -> float:
        """Return the largest Lyapunov exponent."""
        return float(self.exponents[0])

    @property
    def entropy(self) -> float:
        """Return the sum of the positive exponents, an upper bound of the entropy rate in nats per unit of time."""
        return float(self.exponents[self.exponents > 0].sum())

    @property
    def interval(self) -> np.ndarray:
        """Return the confidence interval of each exponent (k, 2): the exponent minus and plus its error."""
        return np.stack([self.exponents - self.error, self.exponents + self.error], 1)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the exponents with their errors."""
        ax = axes_or_new(ax)
        shown = np.isfinite(self.exponents)
        index = np.arange(1, len(self.exponents) + 1)
        ax.errorbar(index[shown], self.exponents[shown], self.error[shown], fmt="o", markersize=3, capsize=2)
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        ax.set(xlabel="index", ylabel="Lyapunov exponent per unit of time", title=self.verdict)
        return ax

    def __str__(self) -> str:
        few = ", ".join(f"{value:.4g}" for value in self.exponents[:4])
        more = f", … ({len(self.exponents)} of {self.state_size})" if len(self.exponents) > 4 else ""
        return (
            f"{self.verdict}: {self.evidence}\nexponents {few}{more} per unit of time\n"
            f"Kaplan–Yorke dimension {self.dimension:.4g}, transient growth {self.growth:.4g}\n"
            f"{self.steps} steps (trajectories: {self.trajectories}), {self.method}"
        )


@checked
def lyapunov_spectrum(
    model: Any,
    inputs: Tensor | ArrayLike | None = None,
    *,
    state: Any = None,
    steps: Size | None = None,
    k: Size | None = None,
    dt: Positive = 1.0,
    seed: Seed = 0,
    progress: bool = True,
) -> LyapunovSpectrum:
    """Measure the Lyapunov exponents of a model: the rates at which small differences between states grow or shrink.

    J_t is the Jacobian matrix of the state after step t with respect to the state before it. The exponents are the
    logarithms of the growth rates of J_t ⋯ J_1. To compute them, k directions are multiplied by J_t and orthogonalized
    at every step (QR, in float64). The result is exact up to rounding in three cases:

    - All J_t are equal. The exponents are log |λ| of their eigenvalues λ.
    - State variables do not influence each other in both directions. Such variables are treated separately: the
      exponents of a diagonal recurrence h_t = a_t h_{t-1} + … are the averages of log |a_t|.
    - The trajectory ends at a fixed point. The exponents are log |λ| of the eigenvalues λ of its Jacobian matrix.

    A state that becomes infinite is an error, unless it grows and all J_t before are equal.

    Without inputs the first tenth of the steps is left out, and up to 512 shorter trajectories that start at points of
    the first trajectory run in parallel, if the model can run them in one call. With inputs the first tenth of the
    inputs only aligns the directions.

    Args:
        model: A function ``(x, state) -> (y, state)``, where x is None if there are no inputs; one of our layers or
            models, ``nn.RNN``, ``GRU``, ``LSTM`` or their cells, or a Hugging Face model with a recurrent state. A
            module without inputs runs with zero inputs.
        inputs: (time, d_input), (time,), (batch, time, d_input), or tokens (time,) or (batch, time). A function gets
            the input of one step: ``inputs[t]``, or with axes of length 1 for batch and time if it requires them.
        state: First state: a tensor or array, or nested tuples, lists and dictionaries of them (default: the model's
            initial state, or the state that it returns for the first input and the state None).
        steps: Number of steps (default: all inputs; without inputs 10,000 for a function and 1,000 for a module).
        k: Number of the largest exponents to measure (default: all, or 16 if the state has more than 512 values).
        dt: Time of one step.
        seed: Seed of the first directions.
        progress: Whether a long computation shows a progress bar.

    >>> def rotation(x, z):
    ...     return None, torch.stack([0.6 * z[0] - 0.8 * z[1], 0.8 * z[0] + 0.6 * z[1]])
    >>> found = lyapunov_spectrum(rotation, state=torch.tensor([1.0, 0.0]))
    >>> found.verdict, bool(abs(found.exponents).max() < 1e-12)
    ('marginal', True)
    """
    with evaluating(model), torch.no_grad(), working("lyapunov_spectrum", progress) as tell:
        way = pusher(stepper(model, inputs, state))
        return _measured(Trajectories(way, k, steps, seed, tell), dt)


def _measured(run: Trajectories, dt: float) -> LyapunovSpectrum:
    """Run the trajectories and return their Lyapunov exponents."""
    cocycle, growth, constant = run.grown()
    if constant is not None:
        exponents = eigenvalue_logs(constant)[: run.k]
        error, history = torch.zeros_like(exponents), exponents[None]
        how = "eigenvalues of the Jacobian matrix, which is the same at all steps"
    else:
        means = cocycle.means()[..., : run.k]
        exponents, error, history = _averages(means, torch.tensor(cocycle.counts, dtype=torch.float64))
        how = "QR at every step"
        # if all parts are exact, averages along given inputs, or of a constant growth, have no error
        if not cocycle.is_exact() or (run.stepper.alone and bool(error.any())):
            error = error + run.missing()
    rates = exponents.numpy() / dt
    slack = max(float(error[0]), 1e-9 if run.way.eps < 1e-12 else 1e-5) / dt  # rounding
    verdict = "expanding" if rates[0] > slack else "contracting" if rates[0] < -slack else "marginal"
    merged = run.merged()
    largest, when = _largest_growth(growth, dt, verdict)
    return LyapunovSpectrum(
        exponents=rates, error=error.numpy() / dt, verdict=verdict,
        evidence=_evidence(rates[0], slack, merged), dimension=_dimension(rates, run.stepper.size),
        growth=largest, growth_time=when, merged=merged, history=history.numpy() / dt,
        state_size=run.stepper.size, steps=sum(cocycle.counts) * len(run.start), trajectories=len(run.start),
        dt=dt, method=f"{how}; {run.way.mode}",
    )  # fmt: skip


def _averages(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exponents, twice their standard errors, and the estimates of the exponents after each chunk of steps.

    ``means`` (chunks, R, k) is the result of :meth:`Cocycle.means`, and ``counts`` the number of steps of each chunk.
    """
    weights = counts / counts.sum()
    exponents = (weights[:, None, None] * means).sum(0).mean(0)
    order = exponents.argsort(descending=True, stable=True)
    error = 2 * _standard_error(means, weights)
    running = (counts[:, None, None] * means).cumsum(0).mean(1) / counts.cumsum(0)[:, None]
    return exponents[order], error[order], running[:, order]


def _standard_error(means: Tensor, weights: Tensor) -> Tensor:
    """Return the standard errors of the exponents: for each exponent, the larger of two estimates.

    ``means`` (chunks, R, k) is the result of :meth:`Cocycle.means`, and ``weights`` are the shares of the chunks in the
    steps.

    The first estimate is computed from the averages of the trajectories, which are not independent if the trajectories
    start near each other. The second estimate is computed from the averages of chunks of time, which are not
    independent if the chunks are short.
    """
    pairs = list(zip(means.tensor_split(PIECES), weights.tensor_split(PIECES), strict=True))
    pieces = torch.stack([(w[:, None, None] * part).sum(0) / w.sum() for part, w in pairs if len(part)])
    apart = [(weights[:, None, None] * means).sum(0), pieces.mean(1)]
    if len(means[0]) < PIECES:
        apart = [pieces.flatten(0, 1)]
    errors = [group.std(0) / math.sqrt(len(group)) for group in apart if len(group) > 1]
    return torch.stack([*errors, torch.zeros(means.shape[-1])]).nan_to_num(0.0).amax(0)


def _dimension(rates: np.ndarray, size: int) -> float:
    """Return the Kaplan–Yorke dimension for exponents in descending order; NaN if more exponents are needed.

    ``size`` is the number of all exponents.

    >>> round(_dimension(np.array([0.9056, 0.0, -14.5723]), 3), 4)
    2.0621
    """
    sums = np.cumsum(rates)
    count = int((sums >= 0).sum())
    if count == 0:
        return 0.0
    if count == len(rates):
        return float(size) if len(rates) == size else math.nan
    return count + float(sums[count - 1] / -rates[count])


def _largest_growth(growth: Growth, dt: float, verdict: str) -> tuple[float, float]:
    if verdict == "expanding":
        return math.inf, math.inf
    best = int(np.argmax(growth.logs))
    log = max(0.0, growth.logs[best])
    return (math.exp(log), growth.times[best] * dt) if log > 0 else (1.0, 0.0)


def _evidence(largest: float, slack: float, merged: float | None) -> str:
    text = f"the largest exponent is {largest:.4g} ± {slack:.2g}"
    if merged is None:
        return text
    rest = f"merge (to {merged:.1g} of their distance)" if merged < 1e-3 else f"keep {merged:.2g} of their distance"
    return f"{text}; trajectories from different states {rest}"

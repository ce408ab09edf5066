"""Lyapunov exponents: rates at which small differences between two states grow or shrink along a trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError
from stablessm._progress import working
from stablessm.instruments import _axes
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.dynamics._cocycle import Cocycle, Growth, blocks, closure, eigenvalue_logs, orthonormal
from stablessm.instruments.dynamics._pushing import SMALL, Pusher, pusher
from stablessm.instruments.dynamics._stepping import stepper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_EXPONENTS = 512
"""Largest size of a state of which all exponents are computed by default, and of a Jacobian matrix."""

FEW_EXPONENTS = 16
"""Default number of exponents of a larger state."""

TOGETHER = 2**14
"""Largest number of values (of all directions) at which parallel trajectories cost little extra time."""

MOST_TRAJECTORIES = 512
"""Largest number of parallel trajectories."""

MORE = 4
"""Number of steps of all parallel trajectories together, as a multiple of the requested steps."""

LONG_ENOUGH = 4000
"""A parallel trajectory has at least this number of steps, or a quarter of the requested steps if that is less."""

SETTLING = 5000
"""Smallest number of steps before the first state of a trajectory (if larger: a tenth of the steps)."""

APART = 1e-3
"""Initial distance of parallel trajectories from the first trajectory, relative to its standard deviation."""

SAME = 1000
"""Largest difference between Jacobian matrices that count as equal, in units of their rounding errors."""

COMPARED = 2
"""Number of steps whose Jacobian matrices must be equal if the state becomes infinite after them."""

TRANSIENT = 1000
"""Number of steps in which transient growth is measured."""

PIECES = 8
"""Number of pieces of time whose averages give the standard error."""

SLOWEST = 3
"""Largest c if the growth after t steps is λ + c/t per step: z/(z - 1) near 0 if x becomes x - x**z, z from 1.5."""

OTHERS = 4
"""Number of initial states whose trajectories under the same inputs are compared."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class LyapunovSpectrum(Result):
    """The result of :func:`lyapunov_spectrum`: the Lyapunov exponents of a model, with error estimates."""

    exponents: np.ndarray
    """Exponents (k,) in descending order, per unit of time; -inf for directions that vanish in finitely many steps."""
    error: np.ndarray
    """(k,) half the width of a band of about 95 %: two standard errors, and what may be missing if the growth per step
    approaches its limit as slowly as 1/t, or if changes grow in proportion to t; 0 if the exponents are exact."""
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
        ax = _axes.on(ax)
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
    dt: float = 1.0,
    seed: Seed = 0,
    progress: bool = True,
) -> LyapunovSpectrum:
    """Measure the Lyapunov exponents of a model: the rates at which small differences between states grow or shrink.

    J_t is the Jacobian matrix of the state after step t with respect to the state before it. The exponents are
    the logarithms of the growth rates of J_t ⋯ J_1. They are computed by multiplying k directions by J_t and
    orthogonalizing them at every step (QR, in float64). The result is exact up to rounding in three cases:

    - All J_t are equal. The exponents are log |λ| of their eigenvalues λ.
    - State variables do not influence each other in both directions. They are treated separately: the exponents of a
      diagonal recurrence are the averages of log |a_t|.
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
            initial state, or whatever it returns for the first input and None).
        steps: Number of steps (default: all inputs; without inputs 10,000 for a function and 1,000 for a module).
        k: Number of exponents, the largest (default: all, or 16 if the state has more than 512 values).
        dt: Time of one step.
        seed: Seed of the first directions.
        progress: Whether a long computation shows a progress bar.

    >>> def rotation(x, z):
    ...     return None, torch.stack([0.6 * z[0] - 0.8 * z[1], 0.8 * z[0] + 0.6 * z[1]])
    >>> found = lyapunov_spectrum(rotation, state=torch.tensor([1.0, 0.0]))
    >>> found.verdict, bool(abs(found.exponents).max() < 1e-12)
    ('marginal', True)
    """
    dt = real_number("dt", dt, 0)
    with evaluating(model), torch.no_grad(), working("lyapunov_spectrum", progress) as tell:
        run = stepper(model, inputs, state)
        return _Measurement(pusher(run), k, steps, dt, seed, tell).result()


class _Measurement:
    """A measurement of Lyapunov exponents: runs trajectories with directions, and computes the result."""

    def __init__(
        self, way: Pusher, k: int | None, steps: int | None, dt: float, seed: int, tell: Callable[[], object]
    ) -> None:
        self.way, self.dt, self.tell = way, dt, tell
        run = self.run = way.stepper
        self.k = _number_of_exponents(k, run.size)
        self.full = run.size <= MOST_EXPONENTS and (2 * self.k >= run.size or run.size <= SMALL)
        self.tangents = run.size if self.full else self.k
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = float(run.start.abs().max()) or 1.0
        self.settled, self.escaped = 0, 0  # steps from the first state to ``start``, and until it is not finite
        steps = None if steps is None else whole_number("steps", steps)
        if run.alone:
            steps = steps or (1000 if isinstance(run.module, torch.nn.Module) else 10_000)
            many = not (run.place == "single" and not run.vectorized)
            count = min(max(1, TOGETHER // (self.tangents * run.size)), MOST_TRAJECTORIES) if many else 1
            shorter = max(MORE * steps // count, min(steps // 4, LONG_ENOUGH), 1)
            self.length = min(steps, shorter) if count > 1 else steps
            self.skip = min(1000, self.length // 5)
            self.start = self._on_the_attractor(min(steps, max(steps // 10, SETTLING)), count)
        else:
            assert run.inputs is not None
            here = run.inputs.shape[1] - run.taken
            steps = here if steps is None else steps
            if steps > here:
                raise ArgumentError("steps", f"at most {here} (the inputs)", steps)
            self.skip = steps // 10
            self.length, self.start = steps - self.skip, run.start

    def _on_the_attractor(self, steps: int, count: int) -> Tensor:
        """Return ``count`` states near the attractor of a trajectory.

        The trajectory runs for ``steps`` steps. The states are points of its second half, moved by a small random
        change (a single state is the last point, not moved). If the trajectory grows without bounds, it has no
        attractor, and the first state is returned.
        """
        rows, frame = self.run.start, self.run.framed(1)
        found = []
        for t in range(steps):
            rows, frame = self.run.advance(rows, self.run.at(t, 1), frame)
            if not bool(rows.isfinite().all()):
                self.escaped = t + 1
                break
            self._rescale(rows)
            if t >= steps // 2:
                found.append(rows)
            self.tell()
        if self.escaped or _is_huge(rows):
            self.scale = float(self.run.start.abs().max()) or 1.0
            return self.run.start
        self.settled = steps
        if count == 1:
            return rows
        visited = torch.cat(found)
        chosen = visited[torch.linspace(0, len(visited) - 1, count).long()]
        noise = torch.randn(chosen.shape, generator=self.generator, dtype=chosen.dtype)
        moved = chosen + APART * (visited.std(0) if len(visited) > 1 else 0.0) * noise
        moved = moved.clamp(visited.amin(0), visited.amax(0))
        return torch.where(self._stays(moved, min(steps, self.skip)), moved, chosen)

    def _stays(self, rows: Tensor, steps: int) -> Tensor:
        """Return a mask (R, 1) of the states in ``rows`` whose trajectories stay finite for the given number of steps.

        From some states near an attractor, trajectories diverge.
        """
        after, frame = rows, self.run.framed(len(rows))
        for t in range(steps):
            after, frame = self.run.advance(after, self.run.at(t, len(rows)), frame)
        return after.isfinite().all(1, keepdim=True)

    def _rescale(self, rows: Tensor) -> None:
        self.scale = max(float(rows.abs().max()), 0.999 * self.scale)

    def _not_finite(self, step: int) -> NumericalError:
        """Create the error for a state that is not finite after step ``step``, with advice on what to change."""
        most = (step - 1) * 5 // 11 if self.run.alone else step - 1  # trajectories are up to 2.2 times as long
        fewer = f"give at most {most} steps, " if most else ""
        remedy = f"{fewer}start from another state or give smaller inputs"
        return NumericalError(f"the state or its derivative is not finite after step {step}", remedy)

    def result(self) -> LyapunovSpectrum:
        """Run the trajectories and return their Lyapunov exponents."""
        cocycle, growth, constant = self._trajectories()
        if constant is not None:
            exponents = eigenvalue_logs(constant)[: self.k]
            error, history = torch.zeros_like(exponents), exponents[None]
            how = "eigenvalues of the Jacobian matrix, which is the same at all steps"
        else:
            means = cocycle.means()[..., : self.k]
            exponents, error, history = _averages(means, torch.tensor(cocycle.counts, dtype=torch.float64))
            how = "QR at every step"
            # of exact parts, averages along given inputs or of a constant growth are exact
            if not cocycle.is_exact() or (self.run.alone and bool(error.any())):
                error = error + self._missing()
        rates = exponents.numpy() / self.dt
        slack = max(float(error[0]), 1e-9 if self.way.eps < 1e-12 else 1e-5) / self.dt  # rounding
        verdict = "expanding" if rates[0] > slack else "contracting" if rates[0] < -slack else "marginal"
        merged = self._merged()
        largest, when = _largest_growth(growth, self.dt, verdict)
        return LyapunovSpectrum(
            exponents=rates, error=error.numpy() / self.dt, verdict=verdict,
            evidence=_evidence(rates[0], slack, merged), dimension=_dimension(rates, self.run.size),
            growth=largest, growth_time=when, merged=merged, history=history.numpy() / self.dt,
            state_size=self.run.size, steps=sum(cocycle.counts) * len(self.start), trajectories=len(self.start),
            dt=self.dt, method=f"{how}; {self.way.mode}",
        )  # fmt: skip

    def _missing(self) -> float:
        """Return the largest error of the exponents, per step, because the trajectories are finite.

        Growth may approach its limit slowly, or changes may grow in proportion to time, as between periodic
        trajectories of different frequencies. Return the larger of the two errors.
        """
        slow = SLOWEST / (self.settled + self.skip + self.length)
        return max(slow, math.log1p(self.length / max(self.skip, 1)) / self.length)

    def _trajectories(self) -> tuple[Cocycle, Growth, Tensor | None]:
        """Run the trajectories and return three results.

        These are the growth of k directions, the transient growth of small changes, and the Jacobian matrix if it is
        the same at all steps (otherwise None).
        """
        size = self.run.size
        matrix = self._matrix() if size <= MOST_EXPONENTS else None
        if not self.full or matrix is None:
            found = self._walk(matrix, None)
            assert not isinstance(found, Tensor)
            return found
        pattern = (matrix != 0).any(0)
        while True:  # until no variable influences another one that the pattern does not have
            walked = self._walk(matrix, pattern)
            if not isinstance(walked, Tensor):
                return walked
            pattern = pattern | walked

    def _matrix(self) -> Tensor:
        """Return the Jacobian matrices of the first step, (R, n, n); only of the first trajectory, (1, n, n), if not
        all exponents are measured.
        """
        count = len(self.start)
        rows, x = self.start, self.run.at(0, count)
        if not self.full:
            rows, x = rows[:1], None if x is None else x[:1]
        return self.way.matrices(rows, x, self.run.framed(len(rows) * self.run.size), self.scale)[1]

    def _pushed(self, rows: Tensor, directions: Tensor, t: int, frame: Any) -> tuple[Tensor, Tensor, Any]:
        """Advance states by step t; return the next states, the Jacobian matrices times the directions, and a state
        object.

        The state object is the ``frame`` of the next step.
        """
        count, size, k = directions.shape
        wide, x = rows.repeat_interleave(k, 0), self.run.at(t, count * k)
        after, moved, frame = self.way.push(wide, directions.mT.reshape(count * k, size), x, frame, self.scale)
        return after[::k], moved.reshape(count, k, size).mT, frame

    def _walk(self, first: Tensor | None, pattern: Tensor | None) -> Any:
        """Run the trajectories and return the results of :meth:`_trajectories`.

        ``first`` is the Jacobian matrix of the first step. ``pattern`` is the assumed pattern of influences between
        variables. If an influence appears that the pattern does not have, the run ends, and the mask of the influences
        of this step is returned instead.
        """
        size, count, k = self.run.size, len(self.start), self.tangents
        parts = None if pattern is None else blocks(pattern)
        covered = None if pattern is None else closure(pattern)
        cocycle = Cocycle(orthonormal(count, size, k, parts, self.generator), self.length, parts)
        growth = Growth(torch.eye(k, dtype=torch.float64))
        rows, frame, same = self.start, self.run.framed(count * k), first is not None
        escaped = self.escaped
        for t in range(self.skip + self.length):
            if t == self.skip:
                cocycle.forget()
            held, before = cocycle.directions, rows
            if parts is None:
                rows, moved, frame = self._pushed(rows, held, t, frame)
            else:
                rows, moved, frame = self.way.matrices(rows, self.run.at(t, count), frame, self.scale)
            if not bool(rows.isfinite().all() & moved.isfinite().all()):
                escaped, same = escaped or self.settled + t + 1, same and t >= COMPARED and _is_huge(before)
                break
            self._rescale(rows)
            if parts is not None:
                assert covered is not None
                if len(parts) > 1 and bool(((moved != 0).any(0) & ~covered).any()):
                    return (moved != 0).any(0)
                cocycle.add_matrix(moved)
            else:
                cocycle.add(moved)
            if same and first is not None:
                expected = first if parts is not None else first[:1] @ held
                same = bool((moved - expected).abs().max() <= SAME * self.way.eps * expected.abs().max())
            if t < TRANSIENT:
                growth.add(moved[0] if parts is not None else cocycle.directions[0].mT @ moved[0])
            self.tell()
        constant = first is not None and same and bool(((first - first[:1]).abs() <= SAME * self.way.eps).all())
        if escaped and not constant:
            raise self._not_finite(escaped)
        return cocycle, growth, first[0] if constant and first is not None else None

    def _merged(self) -> float | None:
        """Return the final distance between trajectories from different states under the same inputs, relative to their
        initial distance; None without inputs.
        """
        run = self.run
        if run.alone or run.inputs is None:
            return None
        noise = torch.randn(OTHERS * len(run.start), run.size, generator=self.generator, dtype=torch.float64)
        rows = run.start.repeat_interleave(OTHERS, 0)
        noise[::OTHERS] = 0.0
        rows, frame = (rows + self.scale * noise).to(rows.dtype), run.framed(len(rows))
        before = _spread(rows, OTHERS)
        for t in range(self.skip + self.length):
            rows, frame = run.advance(rows, run.at(t, len(rows)), frame)
        after = _spread(rows, OTHERS)
        return float((after / before.clamp(min=1e-300)).max()) if bool(after.isfinite().all()) else None


def _number_of_exponents(k: int | None, size: int) -> int:
    if k is None:
        return size if size <= MOST_EXPONENTS else FEW_EXPONENTS
    k = whole_number("k", k)
    if k > size:
        raise ArgumentError("k", f"at most {size} (the size of the state)", k)
    return k


def _is_huge(rows: Tensor) -> bool:
    """Return True if a number is so large that its square would overflow."""
    return bool((rows.abs() > torch.finfo(rows.dtype).max ** 0.5).any())


def _spread(rows: Tensor, others: int) -> Tensor:
    """Return, for each group of ``others`` consecutive states, the largest distance from the first state of the
    group.
    """
    groups = rows.double().reshape(-1, others, rows.shape[1])
    return torch.linalg.vector_norm(groups[:, 1:] - groups[:, :1], dim=-1).amax(1)


def _averages(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exponents, twice their standard errors, and estimates after each chunk, from means (chunks, R, k)."""
    weights = counts / counts.sum()
    exponents = (weights[:, None, None] * means).sum(0).mean(0)
    order = exponents.argsort(descending=True, stable=True)
    error = 2 * _standard_error(means, weights)
    running = (counts[:, None, None] * means).cumsum(0).mean(1) / counts.cumsum(0)[:, None]
    return exponents[order], error[order], running[:, order]


def _standard_error(means: Tensor, weights: Tensor) -> Tensor:
    """Return the standard error of the mean: the larger of two estimates.

    One is computed from the averages of the trajectories, which are not independent if they start near each other. The
    other is computed from the averages of pieces of time, which are not independent if they are short.
    """
    pairs = list(zip(means.tensor_split(PIECES), weights.tensor_split(PIECES), strict=True))
    pieces = torch.stack([(w[:, None, None] * part).sum(0) / w.sum() for part, w in pairs if len(part)])
    apart = [(weights[:, None, None] * means).sum(0), pieces.mean(1)]
    if len(means[0]) < PIECES:
        apart = [pieces.flatten(0, 1)]
    errors = [group.std(0) / math.sqrt(len(group)) for group in apart if len(group) > 1]
    return torch.stack([*errors, torch.zeros(means.shape[-1])]).nan_to_num(0.0).amax(0)


def _dimension(rates: np.ndarray, size: int) -> float:
    """Return the Kaplan–Yorke dimension for exponents in descending order.

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

"""Trajectories of a model, with or without inputs, and the growth of small changes of the state along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError, NumericalError
from stablessm.instruments.dynamics._cocycle import Cocycle, Growth, blocks, closure, orthonormal
from stablessm.instruments.dynamics._pushing import SMALL, Pusher

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

SLOWEST = 3
"""Largest c that is assumed if the growth after t steps is λ + c/t per step; c = z/(z - 1) for x ↦ x - x**z near 0."""

OTHERS = 4
"""Number of initial states whose trajectories under the same inputs are compared."""


@final
class Trajectories:
    """The trajectories of a measurement of Lyapunov exponents, and directions of small changes along them."""

    def __init__(self, way: Pusher, k: int | None, steps: int | None, seed: int, tell: Callable[[], object]) -> None:
        self.way, self.tell = way, tell
        run = self.stepper = way.stepper
        self.k = _number_of_exponents(k, run.size)
        self.full = run.size <= MOST_EXPONENTS and (2 * self.k >= run.size or run.size <= SMALL)
        self.tangents = run.size if self.full else self.k
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = float(run.start.abs().max()) or 1.0
        self.settled, self.escaped = 0, 0  # steps from the first state to ``start``, and until it is not finite
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
        rows, frame = self.stepper.start, self.stepper.framed(1)
        found = []
        for t in range(steps):
            rows, frame = self.stepper.advance(rows, self.stepper.at(t, 1), frame)
            if not bool(rows.isfinite().all()):
                self.escaped = t + 1
                break
            self._rescale(rows)
            if t >= steps // 2:
                found.append(rows)
            self.tell()
        if self.escaped or _is_huge(rows):
            self.scale = float(self.stepper.start.abs().max()) or 1.0
            return self.stepper.start
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
        after, frame = rows, self.stepper.framed(len(rows))
        for t in range(steps):
            after, frame = self.stepper.advance(after, self.stepper.at(t, len(rows)), frame)
        return after.isfinite().all(1, keepdim=True)

    def _rescale(self, rows: Tensor) -> None:
        self.scale = max(float(rows.abs().max()), 0.999 * self.scale)

    def _not_finite(self, step: int) -> NumericalError:
        """Create the error for a state that is not finite after step ``step``, with advice on what to change."""
        most = (step - 1) * 5 // 11 if self.stepper.alone else step - 1  # trajectories are up to 2.2 times as long
        fewer = f"give at most {most} steps, " if most else ""
        remedy = f"{fewer}start from another state or give smaller inputs"
        return NumericalError(f"the state or its derivative is not finite after step {step}", remedy)

    def missing(self) -> float:
        """Return the largest error, per step, that the finite length of the trajectories can cause in the exponents.

        The error has two possible causes, and the larger of the two errors is returned. First, the growth rates may
        approach their limit slowly. Second, changes may grow in proportion to time, as the distance of two periodic
        trajectories of different frequencies does.
        """
        slow = SLOWEST / (self.settled + self.skip + self.length)
        return max(slow, math.log1p(self.length / max(self.skip, 1)) / self.length)

    def grown(self) -> tuple[Cocycle, Growth, Tensor | None]:
        """Run the trajectories and return three results.

        The results are the growth of k directions, the transient growth of small changes, and the Jacobian matrix if it
        is the same at all steps (otherwise None).
        """
        size = self.stepper.size
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
        """Return the Jacobian matrices of the first step of all trajectories, (trajectories, n, n), for states of n
        numbers.

        If not all exponents are measured, return only the matrix of the first trajectory, (1, n, n).
        """
        count = len(self.start)
        rows, x = self.start, self.stepper.at(0, count)
        if not self.full:
            rows, x = rows[:1], None if x is None else x[:1]
        return self.way.matrices(rows, x, self.stepper.framed(len(rows) * self.stepper.size), self.scale)[1]

    def _pushed(self, rows: Tensor, directions: Tensor, t: int, frame: Any) -> tuple[Tensor, Tensor, Any]:
        """Advance states by step t; return the next states, the Jacobian matrices times the directions, and a state
        object.

        The state object is the ``frame`` of the next step.
        """
        count, size, k = directions.shape
        wide, x = rows.repeat_interleave(k, 0), self.stepper.at(t, count * k)
        after, moved, frame = self.way.push(wide, directions.mT.reshape(count * k, size), x, frame, self.scale)
        return after[::k], moved.reshape(count, k, size).mT, frame

    def _walk(self, first: Tensor | None, pattern: Tensor | None) -> Any:
        """Run the trajectories and return the three results of :meth:`grown`.

        ``first`` are the Jacobian matrices of the first step. ``pattern`` (n, n) is True where a variable is assumed to
        influence another. If another influence appears in a step, the run ends, and the method returns the mask (n, n)
        of all influences in this step instead.
        """
        size, count, k = self.stepper.size, len(self.start), self.tangents
        parts = None if pattern is None else blocks(pattern)
        covered = None if pattern is None else closure(pattern)
        cocycle = Cocycle(orthonormal(count, size, k, parts, self.generator), self.length, parts)
        growth = Growth(torch.eye(k, dtype=torch.float64))
        rows, frame, same = self.start, self.stepper.framed(count * k), first is not None
        escaped = self.escaped
        for t in range(self.skip + self.length):
            if t == self.skip:
                cocycle.forget()
            held, before = cocycle.directions, rows
            if parts is None:
                rows, moved, frame = self._pushed(rows, held, t, frame)
            else:
                rows, moved, frame = self.way.matrices(rows, self.stepper.at(t, count), frame, self.scale)
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

    def merged(self) -> float | None:
        """Return the final distance between trajectories that start in different states and have the same inputs.

        The distance is relative to the initial distance. Without inputs, the result is None.
        """
        run = self.stepper
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

"""Growth rates from products of Jacobian matrices along trajectories, with orthogonalization at every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

MOST_CHUNKS = 64
"""Largest number of pieces of a trajectory for which separate averages are kept."""


def closure(pattern: Tensor) -> Tensor:
    """Return the pattern (n, n) of all influences between variables, from the pattern (n, n) of direct influences.

    An entry is True if a variable influences another, directly or through other variables. The entries on the diagonal
    are True as well.
    """
    reach = pattern | torch.eye(len(pattern), dtype=torch.bool)
    while True:
        further = (reach.float() @ reach.float()) > 0
        if bool((further == reach).all()):
            return reach
        reach = further


def blocks(pattern: Tensor) -> list[Tensor]:
    """Return the groups of variables that influence each other, as tensors of indices.

    ``pattern`` (n, n) is True where a variable influences another directly. If the variables are sorted suitably, a
    matrix with this pattern is block triangular with these groups as the blocks on its diagonal, and its eigenvalues
    are the eigenvalues of the blocks.

    >>> [block.tolist() for block in blocks(torch.tensor([[1, 0, 0], [1, 0, 1], [0, 1, 0]]) != 0)]
    [[0], [1, 2]]
    """
    reach = closure(pattern)
    label = (reach & reach.mT).int().argmax(1)  # the first variable of each set
    return [torch.nonzero(label == first)[:, 0] for first in label.unique()]


def orthonormal(count: int, size: int, k: int, parts: list[Tensor] | None, generator: torch.Generator) -> Tensor:
    """Return ``count`` sets of k random orthonormal directions of ``size`` variables, as a tensor (count, size, k).

    If groups of variables ``parts`` are given, each direction is zero outside one of these groups.
    """
    noise = torch.randn(count, size, k, generator=generator, dtype=torch.float64)
    if parts is None:
        return torch.linalg.qr(noise)[0]
    result = torch.zeros_like(noise)
    for part in parts:
        result[:, part[:, None], part] = torch.linalg.qr(noise[:, part[:, None], part])[0]
    return result


def eigenvalue_logs(matrix: Tensor) -> Tensor:
    """Return log |λ| of all eigenvalues λ of a real matrix (n, n) in descending order, computed block by block."""
    groups = [matrix[block][:, block] for block in blocks(matrix != 0)]
    found = [part.abs().flatten() if len(part) == 1 else torch.linalg.eigvals(part).abs() for part in groups]
    return torch.cat(found).log().sort(descending=True).values


@final
@dataclass
class Cocycle:
    """Accumulates the growth of k orthogonal directions along each of R trajectories of n variables."""

    directions: Tensor
    """Orthonormal directions (R, n, k)."""
    length: int
    """Number of steps that will be added."""
    parts: list[Tensor] | None = None
    """Sets of variables that are treated separately; None: all variables together."""
    sums: list[Tensor] = field(default_factory=list)
    """Sum of the logarithmic growth in each chunk of steps, (R, k) each."""
    counts: list[int] = field(default_factory=list)

    def add(self, moved: Tensor) -> None:
        """Record the growth of the directions in one step; ``moved`` (R, n, k) is the Jacobian times the directions."""
        self.directions, upper = torch.linalg.qr(moved)
        self._count(upper.diagonal(dim1=-2, dim2=-1).abs().log())

    def add_matrix(self, matrix: Tensor) -> None:
        """Record the growth of the directions in one step, given its Jacobian matrices (R, n, n).

        The growth is computed separately for each set of variables that influence each other (``parts``).
        """
        if self.parts is None or len(self.parts) == 1:
            self.add(matrix @ self.directions)
            return
        logs = matrix.diagonal(dim1=-2, dim2=-1).abs().log()  # growth of parts with one variable
        for part in self.parts:
            if len(part) > 1:
                q, upper = torch.linalg.qr(matrix[:, part[:, None], part] @ self.directions[:, part[:, None], part])
                self.directions[:, part[:, None], part] = q
                logs[:, part] = upper.diagonal(dim1=-2, dim2=-1).abs().log()
        self._count(logs)

    def _count(self, logs: Tensor) -> None:
        if not self.counts or self.counts[-1] >= max(1, math.ceil(self.length / MOST_CHUNKS)):
            self.sums.append(torch.zeros_like(logs))
            self.counts.append(0)
        self.sums[-1] += logs
        self.counts[-1] += 1

    def forget(self) -> None:
        """Discard the growth recorded so far, and continue with the current directions."""
        self.sums.clear()
        self.counts.clear()

    def is_exact(self) -> bool:
        """Return True if the growth rates are exact averages over the steps.

        This is the case if no two variables influence each other in both directions, except the two parts of a complex
        number.
        """
        if self.parts is None or max(map(len, self.parts)) > 2:
            return False
        logs = torch.stack(self.sums).sum((0, 1))
        return all(len(part) == 1 or torch.allclose(logs[part[0]], logs[part[1]], rtol=1e-9) for part in self.parts)

    def means(self) -> Tensor:
        """Return the mean logarithmic growth per step of each chunk and trajectory, (chunks, R, k), largest first.

        A chunk is a range of consecutive steps; there are at most ``MOST_CHUNKS``.
        """
        steps = torch.tensor(self.counts, dtype=torch.float64)
        table = torch.stack(self.sums)
        order = table.sum((0, 1)).argsort(descending=True, stable=True)
        return (table / steps[:, None, None])[..., order]


@final
@dataclass
class Growth:
    """Computes the largest factor by which any small change of the initial state grows in t steps of a trajectory.

    ``times`` are numbers of steps t, and ``logs`` the logarithms of the factors at these times.
    """

    product: Tensor
    log_scale: float = 0.0
    steps: int = 0
    times: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    def add(self, matrix: Tensor) -> None:
        """Multiply the product of Jacobian matrices by the next matrix, and store the norm of the product at some
        steps.
        """
        self.product = matrix @ self.product
        self.steps += 1
        size = float(self.product.abs().max())
        if 0 < size < math.inf:
            self.product, self.log_scale = self.product / size, self.log_scale + math.log(size)
        if self.steps <= 32 or self.steps >= 1.1 * self.times[-1]:
            norm = float(torch.linalg.matrix_norm(self.product, ord=2))
            self.times.append(self.steps)
            self.logs.append(math.log(norm) + self.log_scale if norm > 0 else -math.inf)

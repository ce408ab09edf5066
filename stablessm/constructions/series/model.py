"""The model of a Volterra series: a linear recurrence, powers of its channels, and their weighted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stablessm._checked import checked, require, rule_of
from stablessm._errors import ArgumentError
from stablessm._typing import Sequence, State
from stablessm.scan.checks import check_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stablessm.layers import LRU, RealSSM


@final
class VolterraSSM(nn.Module):
    """A model of a Volterra series: y = h_0 + Σ_r c_r (φ_r * x)^{n_r}, SSM-UA figure 4 with powers as nonlinearity.

    :data:`stablessm.constructions.volterra` builds this model. ``layer`` computes the convolutions φ_r * x of all terms
    r by one recurrence, one channel for each term. Each channel is then raised to its power n_r, and ``readout`` sums
    the powers with the weights c_r. The Volterra kernel of order n is the sum of c_r Π_j φ_r(τ_j) over the terms with
    n_r = n.
    """

    orders: Tensor
    """Powers n_r (R,), whole numbers in ascending order."""
    kernel_errors: Mapping[int, float]
    """Relative error ‖h_n - ĥ_n‖ / ‖h_n‖ of the kernel of each order, in Frobenius norms over the grid of steps; an
    estimate for a function on a large grid."""
    sup_errors: Mapping[int, float]
    """Relative error sup |h_n - ĥ_n| / sup |h_n| of the kernel of each order, over the same points."""
    output_error: float
    """Relative root mean square error of outputs, for random inputs or on held-out data."""
    condition: float
    """Condition number of the exponentials on the grid, each scaled to norm one."""
    seconds: float
    """Seconds that the construction took."""

    @checked
    def __init__(
        self, layer: RealSSM | LRU, orders: np.ndarray, weights: np.ndarray, constant: float, dt: float
    ) -> None:
        super().__init__()
        self.layer, self.dt = layer, dt
        dtype = next(layer.parameters()).dtype
        self.register_buffer("orders", torch.from_numpy(np.asarray(orders, dtype=np.int64)))
        self.readout = nn.Parameter(torch.from_numpy(np.asarray(weights)).to(dtype))
        self.constant = nn.Parameter(torch.tensor(constant, dtype=dtype))
        self.kernel_errors, self.sup_errors = {}, {}
        self.output_error = self.condition = self.seconds = float("nan")

    @property
    def order(self) -> int:
        """Return the order of the series, which is the highest power n_r."""
        return int(self.orders.max()) if len(self.orders) else 0

    @property
    def rank(self) -> dict[int, int]:
        """Return the number of terms c_r (φ_r * x)^n of the series for each order n."""
        found, counts = self.orders.unique(return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    @property
    def states(self) -> int:
        """Return the number of real numbers in the state of one sequence; a complex number counts twice."""
        return int(self.layer.state_shape[0]) * (2 if self.layer.complex_state else 1)

    @property
    def width(self) -> int:
        """Return the number of hidden units: states plus channels."""
        return self.states + len(self.orders)

    @property
    def error(self) -> float:
        """Return the largest measured relative error of the Volterra kernels and of the outputs."""
        return max([self.output_error, *self.kernel_errors.values()])

    def initial_state(self, batch: int) -> State:
        """Return the zero state for a batch."""
        return self.layer.initial_state(batch)

    def forward(self, x: Sequence, state: State | None = None) -> tuple[Sequence, State]:
        """Apply the series to a sequence (B, T, 1); return the outputs (B, T, 1) and the state after the last step."""
        check_tensor("x", x)
        channels, state = self.layer(x.to(self.readout.dtype), state)
        return self._combine(channels).to(x.dtype), state

    def step(self, x_t: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Advance by one step: map an input (B, 1) to the output (B, 1), and return the new state."""
        check_tensor("x_t", x_t)
        channels, state = self.layer.step(x_t.to(self.readout.dtype), state)
        return self._combine(channels).to(x_t.dtype), state

    @checked
    def kernel(self, *times: Tensor | np.ndarray) -> Tensor:
        """Return the kernel ĥ_n of order n of the model on a grid.

        The n arguments are the grid points along the n axes, as whole numbers of steps.

        >>> from stablessm.constructions.series.volterra import volterra
        >>> model = volterra({2: lambda a, b: 1 / (1 + a + b) ** 2}, horizon=100, tol=1e-3)
        >>> grid = torch.tensor([0.0, 3.0])
        >>> model.kernel(grid, grid).shape
        torch.Size([2, 2])
        """
        if not 1 <= len(times) <= 3:
            raise ArgumentError("times", "one to three arrays of steps", f"{len(times)}")
        for one in times:
            require("times", one, rule_of(ArrayLike))
        mine = self.orders == len(times)
        factors = [self.layer.kernel(torch.as_tensor(one))[:, mine, 0] for one in times]
        letters = "abc"[: len(times)]
        equation = ",".join(f"{letter}r" for letter in letters) + f",r->{letters}"
        return torch.einsum(equation, *factors, self.readout[mine]) / self.dt ** len(times)

    @torch.no_grad()
    @checked
    def values(self, steps: np.ndarray) -> np.ndarray:
        """Return the kernel ĥ_n of the model, (P,), at points (P, n) of whole steps."""
        if steps.ndim != 2 or not 1 <= steps.shape[1] <= 3:
            raise ArgumentError("steps", "shape (points, order)", f"shape {steps.shape}")
        if steps.dtype.kind not in "iuf":
            raise ArgumentError("steps", "whole numbers", f"dtype {steps.dtype}")
        mine = self.orders == steps.shape[1]
        times, places = np.unique(steps, return_inverse=True)
        factors = self.layer.kernel(torch.from_numpy(times))[:, mine, 0].numpy()[places.reshape(steps.shape)]
        found = factors.prod(1) @ self.readout[mine].numpy()
        return np.asarray(found / self.dt ** steps.shape[1])

    def _combine(self, channels: Tensor) -> Tensor:
        sizes = [int((self.orders == n).sum()) for n in range(1, 4)]
        groups = channels.split(sizes, dim=-1)
        powers = torch.cat([group**n for n, group in enumerate(groups, 1)], dim=-1)
        return (powers @ self.readout + self.constant)[..., None]

    def extra_repr(self) -> str:
        """Return the number of terms per order, the number of states and the error, for ``print(model)``."""
        ranks = ", ".join(f"order {n}: {rank} terms" for n, rank in self.rank.items())
        return f"{ranks}; {self.states} states, error {self.error:.2g}"

"""The nonlinear recurrent network in continuous time that the papers study."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, TypeAlias, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm._checked import Positive, Size, checked
from stablessm._errors import ArgumentError
from stablessm._typing import Time, Times
from stablessm.layers import activations, initialize
from stablessm.layers.base import SequenceLayer
from stablessm.layers.zero_order_hold import phi
from stablessm.reparam import Reparameterization, matrix
from stablessm.reparam import get as get_map
from stablessm.scan.checks import without_autocast
from stablessm.scan.dispatch import loop

Recurrence: TypeAlias = Literal["dense", "diagonal"]
Solver: TypeAlias = Literal["euler", "exponential"]


@final
class ContinuousRNN(SequenceLayer):
    """A nonlinear recurrent network in continuous time: dh/dt = σ(W h + U x + b),  y = C h (IAT eq. 1).

    The matrix W = g(M) comes from a trainable matrix M by any map g (IAT eq. 15).

    Args:
        d_input, d_state, d_output: sizes.
        activation: ``linear``, ``hardtanh``, ``tanh``, ``sigmoid`` or ``relu``.
        recurrence: ``dense`` (W a matrix) or ``diagonal`` (W a vector).
        map: a matrix map (dense) or a continuous-time scalar map (diagonal), a name or an instance.
        dt: the time between samples.
        solver: how a step of length dt changes the state h, with z = W h + U x + b. ``euler``: h + dt σ(z), which is
            stable only if dt |λ| < 2 (for real λ). ``exponential``: h + dt φ(dt J) σ(z) with J = σ'(z) W and
            φ(z) = (e^z - 1)/z, which is exact for a linear activation and stable at any dt. With a dense W,
            ``exponential`` computes a matrix exponential in every step.
        bias: whether the layer has the bias b.
        eigenvalues: (d_state,) initial eigenvalues of W, in a random orthogonal basis if W is dense. Complex
            eigenvalues must come in conjugate pairs.

    ``torch.compile`` compiles everything except the loop over time, because compiling 100 unrolled steps takes minutes.
    Therefore ``torch.compile(..., fullgraph=True)`` refuses this layer.

    >>> layer = ContinuousRNN(1, 16, 1, activation="tanh", map="skew_minus_psd", dt=0.1)
    >>> y, state = layer(torch.randn(4, 50, 1))
    >>> y.shape, bool((layer.eigenvalues().real < 0).all())
    (torch.Size([4, 50, 1]), True)
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("M",)
    time: ClassVar[Time] = "continuous"

    @checked
    def __init__(
        self,
        d_input: Size,
        d_state: Size,
        d_output: Size,
        *,
        activation: str = "tanh",
        recurrence: Recurrence = "dense",
        map: str | matrix.MatrixMap | Reparameterization = "direct",
        dt: Positive = 1.0,
        solver: Solver = "euler",
        bias: bool = True,
        eigenvalues: Tensor | None = None,
    ) -> None:
        super().__init__(d_input, d_output, (d_state,), complex_state=False)
        self.dt, self.activation, self.recurrence, self.solver = dt, activation, recurrence, solver
        self._sigma = activations.get(activation)
        self.map: matrix.MatrixMap | Reparameterization
        dense = recurrence == "dense"
        if isinstance(map, Reparameterization if dense else matrix.MatrixMap):
            raise ArgumentError(
                "map", f"a matrix map ({', '.join(matrix.names())})" if dense else "a scalar map", repr(map)
            )
        self.map = matrix.get(cast(Any, map)) if dense else get_map(cast(Any, map), time="continuous")
        self._start = None if eigenvalues is None else eigenvalues.detach().cpu()
        self.M = nn.Parameter(torch.empty(d_state, d_state) if recurrence == "dense" else torch.empty(d_state))
        self.U = nn.Parameter(torch.empty(d_state, d_input))
        self.bias = nn.Parameter(torch.empty(d_state)) if bias else None
        self.C = nn.Parameter(torch.empty(d_output, d_state))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw U and C from a Gaussian distribution, set b to zero, and set M so that W has the initial eigenvalues.

        By default, the eigenvalues have time scales that span a factor of 1000.
        """
        size = len(self.M)
        fastest = self.map.range[0] if isinstance(self.map, Reparameterization) else -math.inf
        start = initialize.spread_rates(size, self.dt, fastest) if self._start is None else self._start
        if start.shape != (size,):
            raise ArgumentError("eigenvalues", f"shape {(size,)}", f"shape {tuple(start.shape)}")
        if self.recurrence == "dense":
            basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
            self.M.copy_(self.map.inverse(basis @ real_matrix(start) @ basis.mT))
        elif start.is_complex():
            raise ArgumentError("eigenvalues", "real numbers (the recurrence is diagonal)", start.dtype)
        else:
            self.M.copy_(cast(Reparameterization, self.map).weights(start.double()))
        nn.init.normal_(self.U, std=self.d_input**-0.5)
        nn.init.normal_(self.C, std=size**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def recurrent_matrix(self) -> Tensor:
        """Return the recurrent matrix W = g(M): (N, N), or (N,) if the recurrence is diagonal."""
        return self.map(self.M.to(self._parameter_dtype()))

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of W: complex if dense, real if diagonal."""
        W = self.recurrent_matrix()
        return torch.linalg.eigvals(W) if self.recurrence == "dense" else W

    @checked
    def kernel(self, times: Times) -> Tensor:
        """Return the kernel C e^{W t} U, of shape (len(times), d_output, d_input), if the activation is linear.

        Raise an error for any other activation.
        """
        activations.require_linear(self.activation)
        W = self.recurrent_matrix()
        C, U, times = self.C.to(W.dtype), self.U.to(W.dtype), times.to(W.dtype)
        if self.recurrence == "dense":
            return C @ torch.linalg.matrix_exp(W * times[:, None, None]) @ U
        return torch.einsum("on,tn,ni->toi", C, torch.exp(W * times[:, None]), U)

    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        state = self.initial_state(x.shape[0]) if state is None else state
        varying = [self._drive(x)]
        if reset is not None:
            varying.append(reset.expand(x.shape[:2]))
        if dt is not None and dt.dim():
            varying.append(dt.expand(x.shape[:2]))
        if not x.shape[1]:
            return state.new_empty(x.shape[0], 0, *self.state_shape)
        with without_autocast(x.device.type):
            W = self.recurrent_matrix()
            same = self._linear_step(W, dt)

            def step(states: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor], tuple[Tensor]]:
                (state,), (drive, *rest) = states, now
                if reset is not None:
                    state = torch.where(rest.pop(0)[:, None], torch.zeros_like(state), state)
                new = self._next(W, drive, state, rest[0] if rest else dt, same)
                return (new,), (new,)

            return loop(step, (state,), tuple(varying))[1][0]

    def _advance(self, x_t: Tensor, state: Tensor, dt: Tensor | None) -> Tensor:
        drive = self._drive(x_t)
        with without_autocast(x_t.device.type):
            W = self.recurrent_matrix()
            return self._next(W, drive, state, dt, self._linear_step(W, dt))

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        return F.linear(states.to(self.C.dtype), self.C)

    def _drive(self, x: Tensor) -> Tensor:
        return F.linear(x, self.U, self.bias).to(self._parameter_dtype())

    def _linear_step(self, W: Tensor, dt: Tensor | None) -> Tensor | None:
        """Return the matrix dt φ(dt W) with φ(z) = (e^z - 1)/z, by which the exponential solver multiplies σ(z).

        The result is None if the solver is Euler's, or if the matrix differs from step to step, because σ is not linear
        or because dt varies.
        """
        if self.activation != "linear" or self.solver == "euler" or (dt is not None and dt.dim()):
            return None
        step = W.new_tensor(self.dt) if dt is None else dt
        one = torch.ones_like(W) if self.recurrence == "diagonal" else torch.eye(len(W), dtype=W.dtype, device=W.device)
        return self._phi(W, one, step)

    def _next(self, W: Tensor, drive: Tensor, state: Tensor, dt: Tensor | None, same: Tensor | None) -> Tensor:
        diagonal = self.recurrence == "diagonal"
        z = (W * state if diagonal else F.linear(state, W)) + drive
        slope = self._sigma.value(z)
        if same is not None:
            return state + (same * slope if diagonal else F.linear(slope, same))
        step = state.new_tensor(self.dt) if dt is None else dt[..., None]
        if self.solver == "euler":
            return state + step * slope
        steepness = self._sigma.slope(z)
        if diagonal:
            return state + self._phi(steepness * W, slope, step)
        increment = self._phi(steepness[..., None] * W, slope[..., None], step[..., None])
        return state + increment.squeeze(-1)

    def _phi(self, J: Tensor, v: Tensor, dt: Tensor) -> Tensor:
        """Return dt φ(dt J) v for a Jacobian J and a vector or matrix v, where φ(z) = (e^z - 1) / z.

        If the recurrence is diagonal, J is a vector and the product is elementwise. Otherwise the result is computed as
        the upper right block of the matrix exponential of [[dt J, dt v], [0, 0]].
        """
        if self.recurrence == "diagonal":
            return dt * v * phi(J * dt)
        rows, columns = v.shape[-2:]
        block = F.pad(torch.cat([J, v.expand(*J.shape[:-1], columns)], -1) * dt, (0, 0, 0, columns))
        return torch.linalg.matrix_exp(block)[..., :rows, rows:]

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        sizes = f"{self.d_input}, {len(self.M)}, {self.d_output}"
        return f"{sizes}, {self.activation}, {self.recurrence}, map={self.map!r}, dt={self.dt:g}, {self.solver}"


def real_matrix(eigenvalues: Tensor) -> Tensor:
    """Return a real normal matrix with the given eigenvalues, in 1×1 blocks (real) and 2×2 blocks (complex pairs).

    >>> real_matrix(torch.tensor([-1 + 2j, -1 - 2j])).tolist()
    [[-1.0, 2.0], [-2.0, -1.0]]
    """
    if not eigenvalues.is_complex():
        return torch.diag(eigenvalues.double())
    values = eigenvalues.to(torch.complex128)
    upper, lower = (np.sort_complex(part[part.imag > 0].numpy()) for part in (values, values.conj().resolve_conj()))
    if len(upper) != len(lower) or not np.allclose(upper, lower):
        raise ArgumentError("eigenvalues", "complex ones in conjugate pairs", f"{len(upper)} above, {len(lower)} below")
    blocks = [torch.tensor([[z.real, z.imag], [-z.imag, z.real]], dtype=torch.float64) for z in upper]
    return torch.block_diag(*blocks, *values[values.imag == 0].real.reshape(-1, 1, 1))

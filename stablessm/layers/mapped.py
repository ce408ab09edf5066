"""The base class of layers whose eigenvalues come from a scalar map of the weights ``w``."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Lengths, Reset, Time
from stablessm.layers.base import SequenceLayer
from stablessm.reparam import Reparameterization
from stablessm.reparam import get as get_map
from stablessm.scan import fft_scan, linear_scan
from stablessm.scan.checks import check_tensor
from stablessm.scan.decay_product import decay_product


class MappedLayer(SequenceLayer):
    """The base class of layers h[t] = a[t] ⊙ h[t-1] + u[t] whose decays a[t] depend on eigenvalues λ = f(w).

    A reparameterization (``map``) computes the eigenvalues, or their real part or modulus, from the weights ``w``.
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w",)
    time: Time
    w: nn.Parameter

    def __init__(
        self,
        d_input: int,
        d_output: int,
        state_shape: tuple[int, ...],
        *,
        complex_state: bool,
        map: str | Reparameterization,
        time: Time,
    ) -> None:
        super().__init__(d_input, d_output, state_shape, complex_state=complex_state)
        self.map, self.time = get_map(map, time=time), time

    @abstractmethod
    def _decays(self, x: Tensor, dt: Tensor | None) -> Tensor:
        """Compute the decays a[t] for inputs x (B, T, …), as a tensor (B, T, *state_shape).

        The dimension B, or B and T, may be missing if the decays are the same for all sequences, or also at all steps.
        """

    @checked
    def with_map(self, map: str | Reparameterization, **options: Any) -> Self:
        """Return a copy of the layer with another map.

        The weights of the copy are chosen so that the eigenvalues and outputs do not change.

        >>> import stablessm as ssm
        >>> layer = ssm.RealSSM(1, 4, 1, map="best")
        >>> twin = layer.with_map("direct")
        >>> torch.allclose(twin.eigenvalues(), layer.eigenvalues())
        True
        """
        twin = copy.deepcopy(self)
        twin.map = get_map(map, time=self.time, **options)
        with torch.no_grad():
            twin.w.copy_(twin.map.weights(self.map(self.w.double())))
        return twin

    def transition(
        self, x: Tensor, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Tensor, Tensor]:
        """Return two tensors (B, …), ``factor`` and ``offset``, which describe how a sequence changes the state.

        From any initial state, the state after the sequence is factor ⊙ state + offset. The arguments are as in
        ``forward``. ``stablessm.parallel`` uses the result to join parts of a sequence that were computed on several
        devices.

        >>> import stablessm as ssm
        >>> layer, x, state = ssm.LRU(3, 8, 2), torch.randn(4, 100, 3), torch.randn(4, 8) + 0j
        >>> factor, offset = layer.transition(x)
        >>> torch.allclose(factor * state + offset, layer(x, state)[1], atol=1e-5)
        True
        """
        check_tensor("x", x, 3, "(batch, time, d_input)")
        batch, steps = x.shape[:2]
        _, offset = self.forward(x, lengths=lengths, reset=reset, dt=dt)
        decay = self._decays(x, self._checked_dt(dt, (), (steps,), (batch, steps)))
        dims = len(self.state_shape)
        return decay_product(decay, batch, steps, dims=dims, reset=reset, lengths=lengths), offset

    def _scanned(
        self, decay: Tensor, drive: Tensor, state: Tensor | None, reset: Tensor | None, *, convolves: bool = False
    ) -> Tensor:
        """Return the states after every step (B, T, *state_shape), computed by a scan or a convolution."""
        decay, drive = (part.flatten(-len(self.state_shape)) for part in (decay, drive))
        initial = None if state is None else state.flatten(1)
        states = fft_scan(decay, drive, initial) if convolves else linear_scan(decay, drive, initial, reset=reset)
        return states.unflatten(2, self.state_shape)

    def _parameter(self) -> Tensor:
        return self.w  # called often, and next(self.parameters()) is slow

    def _given(self, eigenvalues: Tensor | None) -> Tensor | None:
        """Check the initial eigenvalues that a user passed, and return them in the shape of the state; None stays
        None.
        """
        if eigenvalues is None:
            return None
        wide = eigenvalues.detach().cpu().to(torch.complex128)
        if wide.shape not in (self.state_shape, self.state_shape[-1:]):
            raise ArgumentError("eigenvalues", f"shape {self.state_shape}", f"shape {tuple(wide.shape)}")
        if not self.complex_state and bool(wide.imag.any()):
            raise ArgumentError("eigenvalues", "real numbers", f"an imaginary part of {wide.imag.abs().max().item()}")
        return (wide if self.complex_state else wide.real).expand(self.state_shape)

"""The base class of layers with a linear diagonal recurrence, which runs as a scan or as a convolution."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import torch
from torch import Tensor, nn

from stablessm._arguments import one_of
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Lengths, Reset, Time
from stablessm.layers.base import SequenceLayer
from stablessm.reparam import Reparameterization
from stablessm.reparam import get as get_map
from stablessm.scan import fft_scan, linear_scan, resolve
from stablessm.scan.checks import check_tensor
from stablessm.scan.decay_product import decay_product
from stablessm.scan.dispatch import exporting

Mode: TypeAlias = Literal["scan", "conv", "auto"]


class DiagonalLayer(SequenceLayer):
    """Base class of layers with a linear diagonal recurrence h[t] = a ⊙ h[t-1] + u[t].

    A reparameterization (``map``) computes a from the trainable weights ``w``.
    ``mode`` is ``scan`` (which allows resets and a ``dt`` that varies in time), ``conv`` (convolution by FFT, without
    either) or ``auto`` (whichever is faster). All modes give the same numbers.
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w",)
    w: nn.Parameter
    _held: tuple[Tensor, Tensor] | None = None
    """The result of ``_discretize(None)``, inside :func:`stablessm.layers.hold.hold`."""

    def __init__(
        self,
        d_input: int,
        d_output: int,
        state_shape: tuple[int, ...],
        *,
        complex_state: bool,
        map: str | Reparameterization,
        time: Time,
        mode: Mode,
    ) -> None:
        super().__init__(d_input, d_output, state_shape, complex_state=complex_state)
        self.map, self.time, self.mode = get_map(map, time=time), time, one_of("mode", mode, get_args(Mode))

    @abstractmethod
    def _discretize(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the factors a and g of h[t] = a h[t-1] + g u[t], in float32 or better.

        Their shape is (*dt.shape, *state_shape), or state_shape without dt.
        """

    @abstractmethod
    def _drive(self, x: Tensor, gain: Tensor) -> Tensor:
        """Return g u (…, *state_shape) for an input x (…, d_input)."""

    @checked
    def with_map(self, map: str | Reparameterization, **options: Any) -> Self:
        """Return a copy with another map: its weights differ, its eigenvalues and therefore its function do not.

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
        """Return the effect of a sequence on the state: final state = factor ⊙ initial state + offset, both (B, …).

        The arguments are those of ``forward``. ``stablessm.parallel`` uses the result to join parts of a sequence that
        were computed on several devices.

        >>> import stablessm as ssm
        >>> layer, x, state = ssm.LRU(3, 8, 2), torch.randn(4, 100, 3), torch.randn(4, 8) + 0j
        >>> factor, offset = layer.transition(x)
        >>> torch.allclose(factor * state + offset, layer(x, state)[1], atol=1e-5)
        True
        """
        check_tensor("x", x, 3, "(batch, time, d_input)")
        batch, steps = x.shape[:2]
        _, offset = self.forward(x, lengths=lengths, reset=reset, dt=dt)
        decay, _ = self._discretize(self._checked_dt(dt, (), (steps,), (batch, steps)))
        dims = len(self.state_shape)
        return decay_product(decay, batch, steps, dims=dims, reset=reset, lengths=lengths), offset

    def _parameter(self) -> Tensor:
        return self.w  # called often, and next(self.parameters()) is slow

    def _factors(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the result of ``_discretize``, or the result that ``hold`` has cached."""
        if self._held is None or dt is not None or torch.is_grad_enabled():
            return self._discretize(dt)
        return self._held

    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        decay, gain = self._factors(dt)
        drive = self._drive(x, gain).flatten(2)
        decay = decay.flatten(-len(self.state_shape))
        initial = None if state is None else state.flatten(1)
        if self._convolves(x, reset, dt):
            states = fft_scan(decay, drive, initial)
        else:
            states = linear_scan(decay, drive, initial, reset=reset)
        return states.unflatten(2, self.state_shape)

    def _advance(self, x_t: Tensor, state: Tensor, dt: Tensor | None) -> Tensor:
        decay, gain = self._factors(dt)
        return decay * state + self._drive(x_t, gain)

    def _convolves(self, x: Tensor, reset: Tensor | None, dt: Tensor | None) -> bool:
        """Return True if this call runs as a convolution."""
        alike = reset is None and (dt is None or dt.dim() == 0)
        if self.mode == "conv" and not alike:
            name = "dt" if reset is None else "reset"
            raise ArgumentError("mode", f"'scan' or 'auto' with a {name} that varies in time", "'conv'")
        if exporting():  # the exported program takes any length, for which an FFT has no fixed size
            return False
        return self.mode == "conv" or (self.mode == "auto" and alike and self._convolution_is_faster(x))

    def _convolution_is_faster(self, x: Tensor) -> bool:
        """Return True if no fast scan is installed (compared in ``benchmarks/scan.py`` and ``s4d_mode.py``)."""
        return resolve("auto", x.device) == "reference"

    def _given(self, eigenvalues: Tensor | None) -> Tensor | None:
        """Return the eigenvalues that a user passed, checked, detached and expanded to the state."""
        if eigenvalues is None:
            return None
        wide = eigenvalues.detach().cpu().to(torch.complex128)
        if wide.shape not in (self.state_shape, self.state_shape[-1:]):
            raise ArgumentError("eigenvalues", f"shape {self.state_shape}", f"shape {tuple(wide.shape)}")
        if not self.complex_state and bool(wide.imag.any()):
            raise ArgumentError("eigenvalues", "real numbers", f"an imaginary part of {wide.imag.abs().max().item()}")
        return (wide if self.complex_state else wide.real).expand(self.state_shape)

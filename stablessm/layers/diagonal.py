"""The base class of layers with a linear diagonal recurrence, which runs as a scan or as a convolution."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError
from stablessm._typing import Time
from stablessm.layers.factors import Weights, computed_at_once
from stablessm.layers.mapped import MappedLayer
from stablessm.reparam import Reparameterization
from stablessm.scan import resolve
from stablessm.scan.dispatch import exporting

Mode: TypeAlias = Literal["scan", "conv", "auto"]


class DiagonalLayer(MappedLayer):
    """The base class of layers with a linear diagonal recurrence h[t] = a ⊙ h[t-1] + u[t].

    ``mode`` is ``scan``, ``conv`` (convolution by FFT) or ``auto`` (whichever is faster). All modes give the same
    numbers. Resets and a ``dt`` that varies in time are possible with ``scan`` and ``auto``, but not with ``conv``.
    """

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
        super().__init__(d_input, d_output, state_shape, complex_state=complex_state, map=map, time=time)
        self.mode = one_of("mode", mode, get_args(Mode))

    @abstractmethod
    def _discretize(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the factors a and g of the recurrence h[t] = a h[t-1] + g u[t], in float32 or better.

        Both factors have the shape (*dt.shape, *state_shape), or state_shape if ``dt`` is None (the layer's own time
        step).
        """

    def _weights_of_factors(self) -> Weights | None:
        """Return the parameters from which a GPU kernel computes the factors a and g of h[t] = a h[t-1] + g u[t].

        The result is None if there is no such kernel.
        """
        return None

    @abstractmethod
    def _drive(self, x: Tensor, gain: Tensor) -> Tensor:
        """Return the term g u[t] of the recurrence h[t] = a h[t-1] + g u[t], as a tensor (…, *state_shape).

        The input x is (…, d_input), and ``gain`` is the factor g.
        """

    def _decays(self, x: Tensor, dt: Tensor | None) -> Tensor:
        return self._discretize(dt)[0]

    def _factors(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the factors a and g of the recurrence h[t] = a h[t-1] + g u[t].

        In the context :func:`~stablessm.layers.hold.hold`, a call without gradients and without ``dt`` returns cached
        factors. Other calls compute the factors.
        """
        if dt is not None:
            return self._discretize(dt)
        if self._held is not None and not torch.is_grad_enabled():
            return self._held
        return computed_at_once(self._weights_of_factors()) or self._discretize(None)

    def _step_factors(self) -> tuple[Tensor, Tensor] | Weights:
        """Return the factors a and g of the recurrence h[t] = a h[t-1] + g u[t], for a step without gradients.

        If a GPU kernel can compute the factors together with the step, return the parameters for this kernel instead.
        """
        if self._held is not None:
            return self._held
        weights = self._weights_of_factors()
        return weights if weights is not None and weights.fit_kernels() else self._discretize(None)

    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        decay, gain = self._factors(dt)
        return self._scanned(decay, self._drive(x, gain), state, reset, convolves=self._convolves(x, reset, dt))

    def _advance(self, x_t: Tensor, state: Tensor, dt: Tensor | None) -> Tensor:
        decay, gain = self._factors(dt)
        return decay * state + self._drive(x_t, gain)

    def _convolves(self, x: Tensor, reset: Tensor | None, dt: Tensor | None) -> bool:
        """Return True if a call with these arguments runs as a convolution."""
        alike = reset is None and (dt is None or dt.dim() == 0)
        if self.mode == "conv" and not alike:
            name = "dt" if reset is None else "reset"
            raise ArgumentError("mode", f"'scan' or 'auto' with a {name} that varies in time", "'conv'")
        if exporting():  # an exported program takes any length, but an FFT has a fixed size
            return False
        return self.mode == "conv" or (self.mode == "auto" and alike and self._convolution_is_faster(x))

    def _convolution_is_faster(self, x: Tensor) -> bool:
        """Return True if the only available scan is the reference, which is slower than a convolution.

        ``benchmarks/scan.py`` and ``s4d_mode.py`` compare a scan with a convolution.
        """
        return resolve("auto", x.device) == "reference"

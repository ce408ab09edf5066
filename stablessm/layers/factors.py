"""Computes the factors a and g of h[t] = a h[t-1] + g u[t] from a layer's weights, on a GPU by one kernel."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stablessm.layers import zero_order_hold
from stablessm.layers.factor_kind import Gain, Kind
from stablessm.reparam import Reparameterization
from stablessm.scan import resolve
from stablessm.scan.dispatch import forward_mode, plain, quick
from stablessm.scan.plain_gradients import plain_gradients

MOST = 1024
"""Largest number of states of a channel that the kernels process."""


class Weights(NamedTuple):
    """The parameters and the map from which the factors a and g of a recurrence are computed."""

    kind: Kind | None
    map: Reparameterization
    w: Tensor
    """(N,) or (H, N)."""
    imag: Tensor | None
    """Frequencies in continuous time or phases in discrete time, as w; None for real factors."""
    log_dt: Tensor | None
    """(H,) logarithms of the time steps; None if the time step is constant."""

    def fit_kernels(self) -> bool:
        """Return True if GPU kernels support the map and the parameters, which must be contiguous and not float64."""
        w = self.w
        return (
            self.kind is not None
            and 0 < w.shape[-1] <= MOST
            and w.numel() > 0
            and all(
                tensor is None
                or (tensor.is_contiguous() and tensor.dtype != torch.float64 and tensor.device == w.device)
                for tensor in self[2:]
            )
        )


def computed_at_once(weights: Weights | None) -> tuple[Tensor, Tensor] | None:
    """Compute the factors a and g of a recurrence with one GPU kernel.

    Returns None if the kernel does not support the recurrence or its tensors.
    """
    if weights is None:
        return None
    kind, map, *tensors = weights
    w = weights.w
    if kind is None or resolve("auto", w.device) != "triton" or not quick(w) or forward_mode():
        return None
    if not weights.fit_kernels() or not all(plain(tensor) for tensor in tensors if tensor is not None):
        return None
    if not (torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)):
        from stablessm.layers import triton_factors

        return triton_factors.forward(kind, w, weights.imag, weights.log_dt)
    decay, gain = _Factors.apply(kind, map, *tensors)
    return decay, gain


def plainly(
    kind: Kind, map: Reparameterization, w: Tensor, imag: Tensor | None, log_dt: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the factors a and g of a recurrence with PyTorch operations in float32, differentiable to any order.

    The arguments are the fields of :class:`Weights`.
    """
    size, angle = map(w.float()), None if imag is None else imag.float()
    if kind.continuous:
        step = size.new_full((1,), kind.dt) if log_dt is None else log_dt.float().exp()[..., None]
        decay, gain = zero_order_hold.plainly(size if angle is None else torch.complex(size, angle), step)
        return decay, gain * -size if kind.gain == "average" else gain
    gain = discrete_gain(kind.gain, map, w.float())
    return size if angle is None else torch.complex(size * angle.cos(), size * angle.sin()), gain


def discrete_gain(gain: Gain, map: Reparameterization, w: Tensor) -> Tensor:
    """Return the factor of the input of each state in discrete time: 1, √(1 - |λ|²) or 1 - λ."""
    if gain == "one":
        return torch.ones_like(w)
    d = map.distance(w)  # 1 - |λ|, without cancellation
    if gain == "variance":  # 1 - |λ|² = d (2 - d)
        return (d * (2 - d)).clamp(min=torch.finfo(d.dtype).tiny).sqrt()
    eigenvalues = map(w)
    return torch.where(eigenvalues > 0, d, 1 - eigenvalues)


class _Factors(torch.autograd.Function):
    """The autograd function of the GPU kernels that compute the factors a and g of a recurrence."""

    @staticmethod
    def forward(
        ctx: Any, kind: Kind, map: Reparameterization, w: Tensor, imag: Tensor | None, log_dt: Tensor | None
    ) -> Any:
        from stablessm.layers import triton_factors

        ctx.kind, ctx.map = kind, map
        ctx.save_for_backward(w, imag, log_dt)
        return triton_factors.forward(kind, w, imag, log_dt, differentiated=True)

    @staticmethod
    def backward(ctx: Any, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor | None, ...]:
        w, imag, log_dt = ctx.saved_tensors
        if torch.is_grad_enabled() or not (plain(d_decay) and plain(d_gain)):
            again = partial(plainly, ctx.kind, ctx.map)
            return None, None, *plain_gradients(again, (w, imag, log_dt), ctx.needs_input_grad[2:], (d_decay, d_gain))
        from stablessm.layers import triton_factors

        return None, None, *triton_factors.backward(ctx.kind, w, imag, log_dt, d_decay, d_gain)

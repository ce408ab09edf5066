"""Conversion of an exponential sum to a layer."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from stablessm import reparam
from stablessm._errors import ArgumentError
from stablessm.constructions.sums._modes import GAPS
from stablessm.layers import LRU, RealSSM

if TYPE_CHECKING:
    from stablessm.constructions.sums.result import ExponentialSum

_COARSE = 1e-3  # of the largest value: a change of the kernel by rounding that is no longer small
_LEAST = 1e-35  # replaces an eigenvalue of 0, which most maps exclude; representable in float32


def to_layer(es: ExponentialSum, map: str | reparam.Reparameterization, dtype: torch.dtype | None) -> RealSSM | LRU:
    """Convert an exponential sum to a layer: compute the weights in float64, then round them to the requested dtype."""
    dtype = dtype or torch.get_default_dtype()
    closest = float(-np.expm1(es.rates.real.max(initial=-np.inf) * es.dt))
    if dtype != torch.float64 and closest < (1 - 1e-9) * GAPS["float32"]:  # allow rounding at the limit
        expected = (
            f"torch.float64, as float32 rounds a decay of {closest:.2g} per step to 0, or a fit with dtype='float32'"
        )
        raise ArgumentError("dtype", expected, dtype)
    states, readout, inputs = _expand(es.weights.reshape(len(es.rates), *(es.shape or (1, 1))))
    if es.is_complex:  # outputs are real parts: Im z = Re(-iz)
        readout = np.concatenate([readout, -1j * readout])
    eigenvalues = np.where(np.abs(es.eigenvalues) < _LEAST, _LEAST, es.eigenvalues)
    oscillates = np.iscomplexobj(es.rates) if es.time == "continuous" else bool((es.eigenvalues.real < 0).any())
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the random weights are replaced
        if oscillates or np.iscomplexobj(eigenvalues):
            layer: RealSSM | LRU = _complex(eigenvalues[states], readout * es._gain[states], inputs, map)
        elif es.time == "continuous":
            layer = _real(es.rates[states], readout, inputs, map, es.dt)
        else:
            layer = _real(eigenvalues[states], readout, inputs, map, None)
        return layer if dtype == torch.float64 else _rounded(layer, dtype, torch.arange(min(es.horizon, 1000) + 1))


def _rounded(layer: RealSSM | LRU, dtype: torch.dtype, steps: torch.Tensor) -> RealSSM | LRU:
    """Round a layer to a dtype, and warn if this changes its kernel at the given steps much."""
    exact = layer.kernel(steps)
    layer = layer.to(dtype)
    change, most = float((layer.kernel(steps) - exact).abs().max()), float(exact.abs().max())
    if not change <= _COARSE * most:
        what = f"rounding to {dtype} changes the kernel of the layer by {change:.2g} of {most:.2g}"
        warnings.warn(f"{what}, because large weights cancel; pass dtype=torch.float64", stacklevel=4)
    return layer


def _complex(
    eigenvalues: np.ndarray, readout: np.ndarray, inputs: np.ndarray, map: str | reparam.Reparameterization
) -> LRU:
    values = torch.tensor(eigenvalues, dtype=torch.complex128)
    sizes = inputs.shape[1], len(values), readout.shape[0]
    layer = LRU(*sizes, map=map, normalize=False, skip=False, eigenvalues=values).double()
    layer.w.copy_(layer.map.inverse(values.abs()))  # again, in double precision
    layer.phase.copy_(values.angle())
    layer.B.copy_(torch.view_as_real(torch.tensor(inputs, dtype=torch.complex128)).transpose(1, 2))
    layer.C.copy_(torch.view_as_real(torch.tensor(readout, dtype=torch.complex128)))
    return layer


def _real(
    eigenvalues: np.ndarray,
    readout: np.ndarray,
    inputs: np.ndarray,
    map: str | reparam.Reparameterization,
    dt: float | None,
) -> RealSSM:
    """Build a RealSSM with real eigenvalues: in continuous time if dt is given, otherwise in discrete time.

    ``readout`` (d_out, n) and ``inputs`` (n, d_in) become the output and input weights C and B of the layer.
    """
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    if dt is not None and map == "best" and float(values.min()) < -2:  # by default its range ends at -1/b = -2
        map = reparam.get("best", time="continuous", b=float(-1 / values.min()) * (1 - 1e-12))
    sizes = inputs.shape[1], len(values), readout.shape[0]
    time = "discrete" if dt is None else "continuous"
    layer = RealSSM(*sizes, map=map, time=time, dt=dt, bias=False, eigenvalues=values).double()  # type: ignore[arg-type]
    layer.w.copy_(layer.map.inverse(values))  # again, in double precision
    layer.B.copy_(torch.tensor(inputs.real))
    layer.C.copy_(torch.tensor(readout.real))
    return layer


def _expand(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decompose the weight matrices (m, d_out, d_in) of m rates into matrices of rank one, each of which is one state.

    A rate whose weight matrix has rank r requires r states. Returns the index of the rate of each state (n,), the
    readout (d_out, n) and the input weights (n, d_in).
    """
    m, d_output, d_input = weights.shape
    if d_input == 1:
        return np.arange(m), weights[:, :, 0].T, np.ones((m, 1), dtype=weights.dtype)
    if d_output == 1:
        return np.arange(m), np.ones((1, m), dtype=weights.dtype), weights[:, 0]
    u, s, vh = np.linalg.svd(weights, full_matrices=False)
    keep = s > np.finfo(np.float64).eps * s.max(initial=0.0)
    which, piece = np.nonzero(keep)
    return which, (u * s[:, None, :])[which, :, piece].T, vh[which, piece]

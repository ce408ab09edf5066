"""The exponential bound on the memory of a state-space model (StableSSM, theorem 3.1), compared with a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import _tensors
from stablessm._checked import Positive, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.instruments._axes import Axes, axes_or_new


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class BernsteinCheck(Result):
    """An exponential bound on the memory of a model, constant · e^(-rate t), and optionally a measured memory."""

    times: Tensor
    """Times of the bound (T,)."""
    rate: float
    """Rate β of the bound."""
    constant: float
    """Factor of e^(-βt): (d+1) L₀ θ_max² (StableSSM eq. 54), or |C| L₀ (d|B| + |b|) if sharp (eq. 53)."""
    d_input: int
    theta_max: float
    memory: Tensor | None = None
    """Measured memory (T,); None before ``against``."""
    floor: float = 0.0
    """Values up to this floor are noise of the measurement and do not violate the bound."""

    @property
    def bound(self) -> Tensor:
        """Return the values (T,) of the bound at ``times``."""
        return self.constant * torch.exp(-self.rate * self.times)

    def against(self, times: Tensor | Sequence[float], memory: Tensor | Sequence[float], *, floor: float = 0.0) -> Self:
        """Return a copy of the check that compares the bound with a memory function measured at the given times.

        The memory must be measured in the norm ``plus_one``, since the theorem is about sup |d/dt y| / (|x|_∞ + 1) over
        Heaviside inputs x (eq. 45). Values of the memory up to ``floor`` count as noise, which does not violate the
        bound.
        """
        at, value = _series("times", times), _series("memory", memory)
        if at.shape != value.shape:
            raise ArgumentError("memory", f"one value for each of {len(at)} times", f"{len(value)} values")
        return replace(self, times=at, memory=value, floor=floor)

    @property
    def ratio(self) -> Tensor:
        """Return the ratio of memory to bound, (T,).

        The ratio is 0 where the memory is at most ``floor``, and infinite where the bound underflows.
        """
        if self.memory is None:
            raise ArgumentError("memory", "a measurement, given by `against(times, memory)`", None)
        return torch.where(self.memory > self.floor, self.memory / self.bound, 0.0)

    @property
    def worst(self) -> tuple[float, float]:
        """Return the largest ratio of memory to bound, and the time at which it occurs."""
        at = self.ratio.argmax()
        return float(self.ratio[at]), float(self.times[at])

    @property
    def holds(self) -> bool:
        """Return True if the memory stays below the bound, up to rounding errors of float64."""
        return self.worst[0] <= 1 + 1e-12

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot bound and memory against time with a logarithmic y axis, on ``ax`` or a new figure."""
        ax = axes_or_new(ax)
        if self.memory is not None:
            ax.plot(self.times, self.memory, label="memory")
        ax.plot(self.times, self.bound, "k--", label=f"{self.constant:.3g} exp(-{self.rate:.3g} t)")
        ax.set(xlabel="time", ylabel="|dy/dt| / (|x| + 1)", yscale="log")
        ax.legend()
        return ax


@checked
def bernstein_bound(
    times: Tensor | Sequence[float], *, rate: Positive, theta_max: float, d_input: Size = 1, lipschitz: float = 1.0
) -> BernsteinCheck:
    """Return an upper bound of the memory function of any target that state-space models can approximate stably.

    The bound at time t is (d+1) L₀ θ_max² e^(-βt) (StableSSM eq. 8 and 54).

    Args:
        times: Times (T,) of the bound.
        rate: β, below the radius up to which the approximation is stable.
        theta_max: θ_max, the largest weight norm of the approximating models.
        d_input: d, number of input channels.
        lipschitz: L₀, the largest slope of the activation.

    >>> bernstein_bound([0.0, 1.0], rate=1.0, theta_max=2.0, d_input=2).bound
    tensor([12.0000,  4.4146], dtype=torch.float64)
    """
    constant = (d_input + 1) * lipschitz * theta_max**2
    return _check(times, rate, constant, d_input, theta_max)


@checked
def bernstein_check(
    model: nn.Module,
    times: Tensor | Sequence[float],
    *,
    rate: Positive | None = None,
    lipschitz: float = 1.0,
    sharp: bool = False,
) -> BernsteinCheck:
    """Compute an exponential bound on the memory of a diagonal layer from its weights.

    The layer is dh/dt = Λh + Bx + b, y = Cσ(h), where Λ is the diagonal matrix of the eigenvalues λ. The bound is
    (d+1) L₀ θ_max² e^(-βt) with d input channels, β = min(-λ) (StableSSM eq. 44), and the weight norm
    θ_max = max(|Λ|₂, |B|₂, |b|₂, |C|₂) (definition 2.4), with spectral norms for matrices.

    Args:
        model: A real diagonal layer in continuous time with ``eigenvalues()``, ``B``, ``C`` and an optional ``bias``,
            such as ``RealSSM``. A skip term D x is ignored, because it is constant under a Heaviside input.
        times: Times (T,) of the bound, in the unit of the model's time.
        rate: β (default: min(-λ)).
        lipschitz: L₀, the largest slope of σ: 1 for linear, tanh, hardtanh and relu, 1/4 for sigmoid.
        sharp: Whether to use the smaller constant of the proof, |C| L₀ (d|B| + |b|) (eq. 53).

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 2, 1, activation="tanh", eigenvalues=torch.tensor([-0.5, -2.0]))
    >>> check = bernstein_check(layer, torch.linspace(0, 10, 101), sharp=True)
    >>> check.rate, check.against(check.times, 0.5 * check.bound).worst[0]
    (0.5, 0.5)
    """
    eigenvalues, B, b, C = _weights(model)
    slowest = float(-eigenvalues.max())
    if slowest <= 0:
        raise ArgumentError("model", "a stable one (λ < 0)", f"λ = {-slowest:.6g}")
    norm_B, norm_b, norm_C = (float(torch.linalg.norm(weight, 2)) for weight in (B, b, C))
    theta_max, d_input = max(float(eigenvalues.abs().max()), norm_B, norm_b, norm_C), B.shape[1]
    constant = norm_C * (d_input * norm_B + norm_b) if sharp else (d_input + 1) * theta_max**2
    return _check(times, slowest if rate is None else rate, lipschitz * constant, d_input, theta_max)


def _check(times: object, rate: float, constant: float, d_input: int, theta_max: float) -> BernsteinCheck:
    if not 0 <= constant < math.inf:
        raise ArgumentError("theta_max, lipschitz", "finite numbers >= 0", f"a constant of {constant}")
    return BernsteinCheck(_series("times", times), rate, constant, d_input, theta_max)


def _weights(model: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights Λ (N,), B (N, D), b (N,) and C (D, N) of a real diagonal layer in continuous time."""
    named = all(hasattr(model, name) for name in ("eigenvalues", "B", "C"))
    eigenvalues = model.eigenvalues().detach() if named else None
    if eigenvalues is None or eigenvalues.is_complex() or getattr(model, "time", "continuous") != "continuous":
        expected = "a real diagonal layer in continuous time, with `eigenvalues()`, `B` and `C`"
        raise ArgumentError("model", expected, type(model).__name__)
    bias = getattr(model, "bias", None)
    weights = eigenvalues, model.B, torch.zeros_like(eigenvalues) if bias is None else bias, model.C
    eigenvalues, B, b, C = (weight.detach().double() for weight in weights)
    if getattr(model, "average", False):
        B, b = B * -eigenvalues[:, None], b * -eigenvalues
    states = len(eigenvalues)
    if eigenvalues.dim() != 1 or B.shape[:-1] != (states,) or C.shape[1:] != (states,):
        shapes = ", ".join(str(tuple(weight.shape)) for weight in (eigenvalues, B, C))
        raise ArgumentError("model", "eigenvalues, B and C of shapes (N,), (N, D) and (D, N)", shapes)
    return eigenvalues, B, b, C


def _series(argument: str, values: object) -> Tensor:
    given = values if isinstance(values, Tensor) else np.asarray(values, np.float64)
    series = _tensors.as_tensor(given).detach().double().cpu()
    if series.dim() != 1 or not len(series):
        raise ArgumentError(argument, "one dimension and at least one value", f"shape {tuple(series.shape)}")
    return series

"""The distance between a model with given weights and a target, in three function norms.

A distance is a function of the weights alone, pure and differentiable, so that ``torch.vmap`` can stack models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stablessm._errors import ArgumentError, quoted
from stablessm.instruments._impulse_response import ImpulseResponse, is_linear, only_output
from stablessm.instruments._weight_balls import Weights

Norm: TypeAlias = Literal["kernel_l1", "sobolev", "mse"]
Distance: TypeAlias = Callable[[Weights], Tensor]
"""Function from (some or all) weights of a model to its distance from the target."""

AMPLITUDES = (0.1, 1.0, 10.0, 100.0)
ROWS = 32


class _Kernel(nn.Module):
    """A module whose ``forward`` returns the kernel of another module, for use with ``functional_call``."""

    owner: Any

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = owner

    def forward(self, times: Tensor) -> Tensor:
        kernel = self.owner.kernel(times)
        return kernel if kernel.dim() == 3 else kernel.diag_embed()  # S4D: channels that do not mix


@final
@dataclass(frozen=True)
class KernelDistance:
    """The ℓ1 distance Σ_k q_k |ρ(t_k) - ρ̂(t_k)|_F of the kernels of a target (ρ) and a model (ρ̂), with weights q_k.

    For a linear model this is the norm of H - Ĥ (StableSSM eq. 19, 58). In continuous time the q_k are the weights of
    the trapezoidal rule on [0, horizon dt]. In discrete time q_k = 1 for k < horizon. A model in discrete time computes
    y[k] = Σ_j ρ̂_j x[k-j], so that ρ̂_j is compared with dt ρ(j dt) if the target is in continuous time.
    """

    model: nn.Module
    times: Tensor
    """Times t_k (K,), in the unit of the kernel of the model."""
    weights: Tensor
    """Weights q_k (K,)."""
    target: Tensor
    """Kernel of the target, (K, d_output, d_input)."""

    def __call__(self, weights: Weights) -> Tensor:
        """Return the distance between the target and the model with the given weights."""
        change = (self.kernel(weights) - self.target).double()  # squares of large values need the range of float64
        return (torch.linalg.vector_norm(change, dim=(-2, -1)) * self.weights).sum()

    def kernel(self, weights: Weights) -> Tensor:
        """Return the kernel (times, d_output, d_input) of the model with the given weights."""
        return functional_call(_Kernel(self.model), {f"owner.{name}": w for name, w in weights.items()}, (self.times,))


def kernel_distance(model: nn.Module, target: Any, horizon: int, dt: float, like: Tensor) -> KernelDistance:
    """Create the :class:`KernelDistance` between a model and a target over ``horizon`` time steps of length ``dt``.

    ``like`` is a weight of the model, which determines dtype and device.
    """
    for name, owner in (("model", model), ("target", target)):
        if not callable(getattr(owner, "kernel", None)):
            raise ArgumentError(name, "a kernel(times) method (norm 'kernel_l1' is for linear maps)", quoted(owner))
    discrete = counts_steps(model)
    steps = torch.arange(horizon if discrete else horizon + 1, dtype=torch.float64, device=like.device)
    weights = torch.full_like(steps, 1.0 if discrete else float(dt))
    if not discrete:
        weights[[0, -1]] /= 2
    with torch.no_grad():
        wanted = target.kernel(steps if counts_steps(target) else steps * dt)
        if discrete != counts_steps(target):
            wanted = wanted * dt if discrete else wanted / dt
        wanted = wanted if wanted.dim() == 3 else wanted.diag_embed()
        dtype = torch.promote_types(like.dtype, torch.float32)
        distance = KernelDistance(model, steps if discrete else steps * dt, weights, wanted.to(dtype))
        shape = tuple(distance.kernel({}).shape)
    if shape != tuple(wanted.shape):
        raise ArgumentError("target", f"a kernel of {shape[1:]} (d_output, d_input)", f"{tuple(wanted.shape[1:])}")
    return distance


def counts_steps(owner: Any) -> bool:
    """Return True if ``owner.kernel`` takes times as numbers of steps.

    The result is True for layers in discrete time, and for layers in continuous time that have no attribute ``dt``.
    """
    time = getattr(owner, "time", None)
    return time == "discrete" or (time == "continuous" and not hasattr(owner, "dt"))


@final
@dataclass(frozen=True)
class OutputDistance:
    """The distance between the outputs of a model and of its target for test inputs.

    The first test input is zero; the norm ``mse`` does not use this input.

    ``mse``: the mean square error. ``sobolev``: the supremum over t of ‖H_t - Ĥ_t‖ + ‖dH_t/dt - dĤ_t/dt‖ (StableSSM
    eq. 6) with ‖H_t‖ = sup_x |H_t(x)| / (‖x‖_∞ + 1) + |H_t(0)| (eq. 14), over the test inputs; derivatives are
    difference quotients.
    """

    model: nn.Module
    norm: Norm
    inputs: Tensor
    """Test inputs (1 + B, T, d_input)."""
    target: Tensor
    """Outputs of the target (1 + B, T, d_output)."""
    dt: float
    response: ImpulseResponse | None
    """Impulse response of a linear model, from which its outputs are computed faster than by running the model."""

    def __call__(self, weights: Weights) -> Tensor:
        """Return the distance between the target and the model with the given weights."""
        error = (self.outputs(weights) - self.target).double()
        if self.norm == "mse":
            return error[1:].square().mean()
        scale = 1 + self.inputs.abs().amax((1, 2))[:, None]
        value = torch.linalg.vector_norm(error[:, 1:], dim=-1) / scale
        slope = torch.linalg.vector_norm(error.diff(dim=1), dim=-1) / (scale * self.dt)
        return (value[1:].amax(0) + value[0] + slope[1:].amax(0) + slope[0]).amax()

    def outputs(self, weights: Weights) -> Tensor:
        """Return the outputs (1 + B, T, d_output) of the model with the given weights."""

        def call(x: Tensor) -> Tensor:
            return only_output(functional_call(self.model, weights, (x,)))

        return call(self.inputs) if self.response is None else self.response.outputs(call)


def output_distance(
    model: nn.Module, target: Any, norm: Norm, inputs: Tensor, dt: float, like: Tensor
) -> OutputDistance:
    """Create the :class:`OutputDistance` between a model and a target for test inputs (B, T, d_input).

    ``like`` is a weight of the model, which determines dtype and device.
    """
    for name, owner in (("model", model), ("target", target)):
        own = None if counts_steps(owner) else getattr(owner, "dt", None)
        if isinstance(own, float | int) and own != dt:
            raise ArgumentError("dt", f"{own}, the {name}'s time step", dt)
    if getattr(model, "batch_first", True) is False:
        raise ArgumentError("model", "batch_first=True, (batch, time, channel)", type(model).__name__)
    inputs = torch.cat([torch.zeros_like(inputs[:1]), inputs]).to(like)
    with torch.no_grad():
        own_dtype = next((p.dtype for p in target.parameters()), like.dtype) if isinstance(target, nn.Module) else None
        wanted = only_output(target(inputs.to(own_dtype or like.dtype))).to(like)
        outputs = only_output(model(inputs))
        if outputs.shape != wanted.shape:
            shapes = tuple(outputs.shape), tuple(wanted.shape)
            raise ArgumentError("target", f"outputs of shape {shapes[0]}, as the model's", shapes[1])
        response = ImpulseResponse.on(inputs) if is_linear(model, inputs, outputs) else None
    return OutputDistance(model, norm, inputs, wanted, dt, response)


def checked_inputs(model: nn.Module, target: Any, inputs: Tensor | None, norm: Norm, horizon: int, seed: int) -> Tensor:
    """Check and return the given test inputs (B, T, d_input); draw test inputs if ``inputs`` is None."""
    sizes = {name: getattr(owner, "d_input", None) for name, owner in (("model", model), ("target", target))}
    known = sizes["model"] or sizes["target"]
    if None not in sizes.values() and sizes["model"] != sizes["target"]:
        raise ArgumentError("target", f"d_input = {sizes['model']}, as of the model", sizes["target"])
    if inputs is None:
        if not isinstance(known, int):
            raise ArgumentError(
                "inputs", "a tensor (batch, time, d_input), since the model does not tell d_input", None
            )
        return drawn_inputs(norm, horizon, known, seed)
    if not isinstance(inputs, Tensor):
        raise ArgumentError("inputs", "a tensor (batch, time, d_input)", type(inputs).__name__)
    if inputs.dim() != 3 or not len(inputs) or inputs.shape[1] < 2:
        raise ArgumentError("inputs", "shape (batch, time, d_input), 2 steps or more", f"shape {tuple(inputs.shape)}")
    if isinstance(known, int) and inputs.shape[-1] != known:
        raise ArgumentError("inputs", f"{known} channels (d_input)", inputs.shape[-1])
    return inputs


def drawn_inputs(norm: Norm, steps: int, d_input: int, seed: int) -> Tensor:
    """Draw 32 test inputs (B, T, d_input), float64: white noise; for ``sobolev`` also Heaviside inputs and random
    signs.

    >>> drawn_inputs("sobolev", 100, 2, seed=0).shape
    torch.Size([32, 100, 2])
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(rows: int, steps: int) -> Tensor:
        return torch.randn(rows, steps, d_input, dtype=torch.float64, generator=generator)

    if norm == "mse":
        return noise(ROWS, steps)
    constant = noise(1, 1).sign().expand(1, steps, d_input)
    kinds = torch.cat([constant, -constant, noise(3, steps).sign(), noise(3, steps)])
    return torch.cat([amplitude * kinds for amplitude in AMPLITUDES])

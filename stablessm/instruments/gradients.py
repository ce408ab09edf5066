"""Gradient-over-weight ratios: the gradient of each weight relative to the size of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._renamed import renamed
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.modes import mapped_weight, ratio, recurrent_modules

QUANTILES = (0.5, 0.9, 0.99)
SAMPLE = 2**20
"""Number of evenly spaced entries from which quantiles of a larger tensor are computed; the maximum is exact."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class ParameterRatio(Result):
    """The gradient-over-weight ratios |∂loss/∂w| / |w| of the entries of one parameter."""

    maximum: float
    quantiles: tuple[float, float, float]
    """Quantiles of the ratios at 0.5, 0.9 and 0.99."""
    ratio: Tensor | None
    """Ratio of every entry, in the shape of the parameter; None for a non-recurrent parameter of more than ``SAMPLE``
    entries."""
    predicted: Tensor | None
    """Predicted ratio G(w)/|w| for a weight w of a scalar map, up to a constant (StableSSM theorem 3.4)."""
    recurrent: bool = False
    """Whether the module of the parameter lists it in ``recurrent_parameters``."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class GradientOverWeight(Result):
    """The gradient-over-weight ratios of all parameters of a model after one backward pass."""

    parameters: Mapping[str, ParameterRatio]
    """Ratios of each parameter by qualified name."""

    @property
    def maximum(self) -> float:
        """Return the largest ratio over all parameters."""
        return max(entry.maximum for entry in self.parameters.values())

    def __getitem__(self, name: str) -> ParameterRatio:
        return self.parameters[name]

    def __str__(self) -> str:
        width = max(map(len, self.parameters))
        lines = [f"{'|gradient| / |weight|':<{width}}  {'median':>9} {'90 %':>9} {'99 %':>9} {'max':>9}  G(w)/|w|"]
        # recurrent parameters first: a bias that starts at 0 has an infinite ratio, which is rarely a problem
        for name, entry in sorted(self.parameters.items(), key=lambda item: (not item[1].recurrent, -item[1].maximum)):
            numbers = " ".join(f"{number:9.2e}" for number in (*entry.quantiles, entry.maximum))
            low, high = (0.0, 0.0) if entry.predicted is None else entry.predicted.aminmax()
            predicted = "" if entry.predicted is None else f"  {low:.2e} to {high:.2e}"
            lines.append(f"{name:<{width}}  {numbers}{predicted}")
        return "\n".join(lines)


@torch.no_grad()
@checked
def gradient_over_weight(model: nn.Module, *, recurrent_only: bool = False) -> GradientOverWeight:
    """Return the gradient-over-weight ratios |∂loss/∂w| / |w| of all parameters after a backward pass.

    Training is stable while these ratios stay bounded.

    Let λ = f(w) be the eigenvalue of a mode with the weight w and the map f. Theorem 3.4 of StableSSM (eq. 12) states,
    for stable λ::

        |∂loss/∂w| ≤ C G(w),   G(w) = |f'(w)| / f(w)²

    with a C that does not depend on f. In discrete time 1 - |f| replaces f, see ``Reparameterization.gradient_scale``.
    The predicted ratio G(w)/|w| is reported with the measured ratio. The predicted ratio shows how a map distributes
    the ratio over modes; for the map "best" it is the same for all modes.

    A weight of 0 has ratio ∞, or 0 if its gradient is 0 too. Parameters without a gradient are left out.

    Args:
        model: Any module, after ``loss.backward()``.
        recurrent_only: Whether to include only the parameters that modules list in ``recurrent_parameters``.

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 3, 1, map="best")
    >>> layer(torch.randn(2, 10, 1))[0].square().sum().backward()
    >>> ratios = gradient_over_weight(layer)
    >>> sorted(ratios.parameters), ratios["w"].predicted.round(decimals=4).tolist()
    (['B', 'C', 'bias', 'w'], [2.0, 2.0, 2.0])
    """
    recurrent = _recurrent(model)
    chosen = {name: p for name, p in _parameters(model, recurrent_only).items() if p.grad is not None}
    if not chosen:
        raise ArgumentError("model", "gradients (call loss.backward() first)", "no parameter with one")
    statistics = _statistics(list(chosen.values())).tolist()
    entries = {}
    for (name, p), (maximum, *quantiles) in zip(chosen.items(), statistics, strict=True):
        module, predicted = recurrent.get(name), None
        if module is not None and mapped_weight(module) == name.rpartition(".")[2]:
            predicted = ratio(module.map.gradient_scale(p.double()), p.double())
        measured = None if module is None and p.numel() > SAMPLE else _ratios(p)
        median, most, nearly_all = quantiles
        entries[name] = ParameterRatio(maximum, (median, most, nearly_all), measured, predicted, module is not None)
    return GradientOverWeight(entries)


@final
@dataclass(frozen=True, eq=False, repr=False)
class GradientHistory(Result):
    """The gradient-over-weight ratios that a ``GradientTracker`` recorded, as arrays over steps and parameters."""

    step: np.ndarray
    """Number of the training step (S,), counted from 0."""
    names: tuple[str, ...]
    maximum: np.ndarray
    """Largest ratio of each parameter (S, P); NaN where a parameter had no gradient."""
    quantiles: np.ndarray
    """Quantiles of the ratios at 0.5, 0.9 and 0.99 (S, P, 3)."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the largest ratio of each parameter by step; the range from median to 99 % quantile is shaded."""
        ax = axes_or_new(ax)
        for i, name in enumerate(self.names):
            (line,) = ax.plot(self.step, self.maximum[:, i], label=name)
            ax.fill_between(
                self.step, self.quantiles[:, i, 0], self.quantiles[:, i, 2], color=line.get_color(), alpha=0.2, lw=0
            )
        ax.set(xlabel="step", ylabel="|gradient| / |weight|", yscale="log")
        ax.legend(fontsize="small")
        return ax


@final
@renamed("optimiser")
@checked
class GradientTracker:
    """Records gradient-over-weight ratios during training; numbers stay on the device until they are read.

    Call ``update()`` after each backward pass, or pass the optimizer. Every ``optimizer.step()`` then calls
    ``update()``, with the clipped and unscaled gradients that the optimizer receives. ``remove()``, or the end of a
    ``with`` block, detaches the tracker.

    Args:
        model: Any module.
        optimizer: Optimizer whose steps are recorded.
        every: Number of steps between records.
        recurrent_only: As in ``gradient_over_weight``.

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 3, 1)
    >>> optimizer = torch.optim.Adam(layer.parameters())
    >>> with GradientTracker(layer, optimizer, recurrent_only=True) as tracker:
    ...     for _ in range(5):
    ...         optimizer.zero_grad()
    ...         layer(torch.randn(2, 10, 1))[0].square().sum().backward()
    ...         optimizer.step()
    >>> tracker.history.names, tracker.history.maximum.shape
    (('w',), (5, 1))
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: Size = 1,
        recurrent_only: bool = False,
    ) -> None:
        self._parameters = _parameters(model, recurrent_only)
        self._every, self._calls = every, 0
        self._steps: list[int] = []
        self._rows: list[Tensor] = []
        self._handle = None if optimizer is None else optimizer.register_step_pre_hook(lambda *_: self.update())

    @torch.no_grad()
    def update(self) -> None:
        """Record the ratios of the current gradients, if a record is due at this step."""
        if self._calls % self._every == 0:
            self._steps.append(self._calls)
            self._rows.append(_statistics(list(self._parameters.values())))
        self._calls += 1

    @property
    def history(self) -> GradientHistory:
        """Return the ratios recorded so far, as NumPy arrays."""
        rows = [row.cpu().numpy() for row in self._rows]
        table = np.stack(rows) if rows else np.empty((0, len(self._parameters), 1 + len(QUANTILES)))
        return GradientHistory(np.array(self._steps, int), tuple(self._parameters), table[..., 0], table[..., 1:])

    def tensors(self) -> dict[str, Tensor]:
        """Return the recorded ratios as tensors, to store them in a checkpoint."""
        steps = torch.tensor([self._calls, *self._steps])
        return {"ratio_steps": steps} | ({"ratios": torch.stack(self._rows)} if self._rows else {})

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the recorded ratios by the tensors from a checkpoint, which :meth:`tensors` returned."""
        self._calls, *self._steps = tensors["ratio_steps"].tolist()
        device = next(iter(self._parameters.values())).device
        self._rows = [*tensors["ratios"].to(device)] if self._steps else []

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the largest recorded ratio of each parameter by step."""
        return self.history.plot(ax)

    def remove(self) -> None:
        """Detach the tracker from the optimizer; the recorded history is kept."""
        if self._handle is not None:
            self._handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _recurrent(model: nn.Module) -> dict[str, Any]:
    """Return a dictionary from the qualified name of each recurrent parameter to its module."""
    return {
        f"{name}.{own}".lstrip("."): module
        for name, module in recurrent_modules(model)
        for own in module.recurrent_parameters
    }


def _parameters(model: nn.Module, recurrent_only: bool) -> dict[str, nn.Parameter]:
    recurrent = _recurrent(model)
    if recurrent_only and not recurrent:
        raise ArgumentError("recurrent_only", "False: no module lists `recurrent_parameters`", recurrent_only)
    return {
        name: p for name, p in model.named_parameters() if p.requires_grad and (not recurrent_only or name in recurrent)
    }


def _ratios(p: nn.Parameter) -> Tensor:
    """Return the ratios |gradient|/|weight| of a parameter in float32 or better."""
    assert p.grad is not None
    grad = p.grad.to_dense() if p.grad.is_sparse else p.grad
    wide = torch.promote_types(p.dtype, torch.float32)
    return ratio(grad.to(wide), p.to(wide))


def _statistics(parameters: list[nn.Parameter]) -> Tensor:
    """Return the maximum and the quantiles of the ratios of each parameter, (P, 4), without waiting for the device."""
    device, rows = parameters[0].device, []
    at = torch.tensor(QUANTILES)
    for p in parameters:
        if p.grad is None or not p.numel():
            rows.append(torch.full((1 + len(QUANTILES),), torch.nan, dtype=torch.float64, device=device))
            continue
        flat = _ratios(p).flatten()
        sample = flat[:: -(-len(flat) // SAMPLE)]
        # an entry of the sample, since interpolating towards an infinite one gives NaN
        quantiles = torch.quantile(sample, at.to(flat), interpolation="higher")
        rows.append(torch.cat([flat.amax()[None], quantiles]).to(device, torch.float64))
    return torch.stack(rows)

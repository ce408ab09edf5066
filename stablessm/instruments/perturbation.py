"""The perturbation error: the largest distance of a model from its target when its weights are perturbed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import record
from stablessm._checked import Positive, Seed, Several, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._tensors import padded
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments._function_norms import (
    Distance,
    KernelDistance,
    Norm,
    checked_inputs,
    kernel_distance,
    output_distance,
)
from stablessm.instruments._model_stack import Stack, joined
from stablessm.instruments._perturbation_bounds import modes_of
from stablessm.instruments._perturbation_search import largest_distances
from stablessm.instruments._weight_balls import WeightBall, WeightNorm, Weights, select
from stablessm.instruments.adapters.facts import evaluating, own_step

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Search: TypeAlias = Literal["random", "ascent"]


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class PerturbationCurve(Result):
    """The perturbation error E(β) of a model at increasing radii β, with lower and upper bounds (StableSSM eq. 7)."""

    _drawn = ("radius", "lower")
    radius: np.ndarray
    """Radii β (R,)."""
    lower: np.ndarray
    """Largest error that the search found. It never decreases in β, since balls are nested; ∞ if a model overflowed."""
    upper: np.ndarray | None
    """Upper bound that no perturbation exceeds; None if there is no theory for the model and the norm."""
    theorem: np.ndarray | None
    """Upper bound of StableSSM theorem 3.3, if only the recurrent weights are perturbed. It holds for an infinite
    horizon and exact integrals, so that the quadrature error of a coarse grid may exceed it."""
    norm: Norm
    weight_norm: WeightNorm
    search: Search
    parameters: tuple[str, ...]
    """Names of the perturbed parameters."""
    samples: int
    steps: int
    """Number of steps of gradient ascent; 0 for random search."""
    horizon: int
    """Horizon in steps of ``dt``."""
    dt: float
    seed: int
    evaluations: int
    """Number of models that were compared with the target."""

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Plot the lower and the upper bound against β on logarithmic axes; the dotted line is the error at β = 0."""
        ax = axes_or_new(ax, 5)
        positive = self.radius > 0
        (line,) = ax.loglog(self.radius[positive], self.lower[positive], "o-", ms=3, label=label or "found by search")
        if self.radius[0] == 0:
            ax.axhline(self.lower[0], color=line.get_color(), ls=":", lw=1)
        if self.upper is not None:
            name = f"{label + ', ' if label else ''}upper bound"
            ax.loglog(self.radius[positive], self.upper[positive], "--", color=line.get_color(), lw=1, label=name)
        ax.set(xlabel=f"β  ({self.weight_norm})", ylabel=f"E(β)  ({self.norm})")
        ax.legend()
        return ax

    def plotly(self) -> Figure:
        """Return the plot of the curve (as :meth:`plot` draws it) as an interactive Plotly figure."""
        from plotly import graph_objects as go

        positive = self.radius > 0
        bounds = {"found by search": self.lower, "upper bound": self.upper, "theorem 3.3": self.theorem}
        lines = [
            go.Scatter(x=self.radius[positive], y=bound[positive], name=name, mode="lines+markers")
            for name, bound in bounds.items()
            if bound is not None
        ]
        titles = {"xaxis_title": f"β ({self.weight_norm})", "yaxis_title": f"E(β) ({self.norm})"}
        return go.Figure(lines).update_layout(**titles, xaxis_type="log", yaxis_type="log")

    def __str__(self) -> str:
        upper = [""] * len(self.radius) if self.upper is None else [f", at most {e:.3g}" for e in self.upper]
        lines = (f"  β = {r:.3g}: {e:.3g}{u}" for r, e, u in zip(self.radius, self.lower, upper, strict=True))
        return "\n".join([f"perturbation error ({self.norm}, {self.weight_norm}, {self.search} search):", *lines])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the curve to an ``.npz`` file."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        meta = {name: value for name, value in fields.items() if name not in arrays}
        record.save_arrays(path, "perturbation curve", meta, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a curve from a file that ``save`` wrote."""
        meta, arrays = record.load_arrays(path, "perturbation curve")
        with record.reading(path, "a curve that PerturbationCurve.save wrote"):
            meta["parameters"] = tuple(meta["parameters"])
            return cls(**{"upper": None, "theorem": None} | meta | arrays)


@checked
def perturbation_error(
    model: nn.Module,
    target: Any,
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    norm: Norm = "kernel_l1",
    weight_norm: WeightNorm = "tensor_max",
    parameters: Sequence[str] | str | None = None,
    search: Search = "random",
    samples: Size = 30,
    steps: Size = 20,
    horizon: Several = 1000,
    dt: Positive | None = None,
    inputs: Tensor | None = None,
    seed: Seed = 0,
    progress: bool = True,
) -> PerturbationCurve:
    """Measure the perturbation error: the largest distance from a target if the weights change by at most β.

    E(β) = sup over |θ̃ - θ| ≤ β of ‖H - Ĥ(·; θ̃)‖ (StableSSM definition 2.4, IAT definition 4.4).

    Args:
        model: Any module from (B, T, d_input) to y or (y, state). It is not changed.
        target: The target H, a callable of the same shapes; for ``kernel_l1`` anything with ``kernel(times)``.
        radii: Radii β ≥ 0, in any order; they are sorted in the curve.
        norm: Function norm. ``kernel_l1``: distance of the kernels, ∫|ρ - ρ̂| dt by the trapezoid rule over horizon + 1
            points, for linear models and targets; Σ_k |dt ρ(k dt) - ρ̂_k| for a model in discrete time, whose kernel
            ρ̂_k is the weight of one step. A direct term D x and a bias are not part of a kernel. ``sobolev``: the
            largest difference of outputs and of their derivatives (StableSSM eq. 6 and 14) over Heaviside inputs,
            random signs and white noise with amplitudes 0.1 to 100; a lower bound of the supremum over all inputs.
            ``mse``: mean square difference of outputs for white noise.
        weight_norm: ``tensor_max``, the largest 2-norm of a parameter tensor (StableSSM, below eq. 7); ``entry_max``,
            the largest entry.
        parameters: Perturbed parameters θ: names or glob patterns, or ``recurrent`` for the parameters that modules
            list in ``recurrent_parameters``, as in theorem 3.3 (default: all trainable parameters).
        search: ``random``: ``samples`` perturbations of norm β, as published. ``ascent``: ``steps`` steps of projected
            gradient ascent from the same perturbations; the result is never smaller than with ``random``.
        samples: Number of random perturbations.
        steps: Number of steps of ascent.
        horizon: Length of the kernels and test inputs, in steps of ``dt``.
        dt: Time step (default: the target's, or the model's, or 1).
        inputs: Test inputs (B, T, d_input) that replace the default inputs and set the horizon.
        seed: Seed of the perturbations and of the test inputs.
        progress: Whether a search shows a progress bar (in a terminal).

    The search gives ``lower``, a lower bound. The upper bound ``upper`` exists for ``kernel_l1`` and diagonal models:
    for ``RealSSM`` and a diagonal linear ``ContinuousRNN`` it is StableSSM eq. 60-63 on the same grid, for ``LRU`` the
    same bound, in which phases change too. There is no upper bound for S4D, whose steps can also change, for a
    ``RealSSM`` with ``average``, for weights in half precision, and for other norms.

    >>> import stablessm as ssm
    >>> from stablessm.targets import LinearFunctional
    >>> layer = ssm.RealSSM(d_input=1, d_state=8, d_output=1, map="best", dt=0.1)
    >>> target = LinearFunctional("polynomial", exponent=1.1, dt=0.1)
    >>> curve = perturbation_error(layer, target, [0.0, 1e-3, 1e-2], parameters="recurrent")
    >>> bool((curve.lower <= curve.upper).all() and (curve.upper <= curve.theorem).all())
    True
    """
    options = Sweep(norm, weight_norm, parameters, search, samples, steps, horizon, dt, inputs, seed, progress)
    return options.curves([model], target, radii)[0]


@final
@checked
@dataclass(frozen=True)
class Sweep:
    """The options of ``perturbation_error``, for one model or several."""

    norm: Norm = "kernel_l1"
    weight_norm: WeightNorm = "tensor_max"
    parameters: Sequence[str] | str | None = None
    search: Search = "random"
    samples: Size = 30
    steps: Size = 20
    horizon: Several = 1000
    dt: Positive | None = None
    inputs: Tensor | None = None
    seed: Seed = 0
    progress: bool = True

    def curves(
        self, models: Sequence[nn.Module], target: Any, radii: Sequence[float] | np.ndarray | Tensor
    ) -> list[PerturbationCurve]:
        """Return one perturbation curve per model.

        Models of different widths run in one computation if that is faster and does not change the results.
        """
        for model in models:
            if not isinstance(model, nn.Module):
                raise ArgumentError("model", "a torch.nn.Module, since its weights are perturbed", type(model).__name__)
        radius, ball = _checked_radii(radii), WeightBall.of(self.weight_norm)
        with ExitStack() as context:
            for model in models:
                context.enter_context(evaluating(model))
            weights = [select(model, self.parameters) for model in models]
            steps = [_time_step(model, target) if self.dt is None else self.dt for model in models]
            distances = [
                self._distance(model, target, dt, next(iter(own.values())))
                for model, dt, own in zip(models, steps, weights, strict=True)
            ]
            stacks = [Stack.of(distance, own) for distance, own in zip(distances, weights, strict=True)]
            starts = [ball.sample(own, self.samples, self.seed) for own in weights]
            found = self._found(models, stacks, starts, ball, torch.as_tensor(radius[radius > 0]))
            return [self._curve(radius, *each, ball) for each in zip(stacks, found, weights, steps, strict=True)]

    @property
    def _climb(self) -> int:
        return self.steps if self.search == "ascent" else 0

    def _found(
        self, models: Sequence[nn.Module], stacks: list[Stack], starts: list[Weights], ball: WeightBall, radii: Tensor
    ) -> list[np.ndarray]:
        """Search for the largest distances of perturbed models from the target; return an array (R,) for each model.

        ``radii`` are the R positive radii.
        """
        together = joined(models, stacks)
        if together is not None:
            shapes = {name: w.shape[1:] for name, w in together.weights.items()}
            all_starts = {
                name: torch.stack([padded(start[name], (self.samples, *shape)) for start in starts])
                for name, shape in shapes.items()
            }
            searches = [(together, all_starts)]
        else:
            searches = [
                (stack, {name: s[None] for name, s in start.items()})
                for stack, start in zip(stacks, starts, strict=True)
            ]
        return [
            row.numpy()
            for stack, start in searches
            for row in largest_distances(stack, start, ball, radii, steps=self._climb, progress=self.progress)
        ]

    def _curve(
        self, radius: np.ndarray, stack: Stack, found: np.ndarray, weights: Weights, dt: float, ball: WeightBall
    ) -> PerturbationCurve:
        base, distance = stack.of_one(), stack.distance
        modes = modes_of(distance) if isinstance(distance, KernelDistance) else None
        values = np.full(len(radius), base)
        values[radius > 0] = found
        return PerturbationCurve(
            radius=radius,
            lower=np.maximum.accumulate(np.maximum(values, base)),
            upper=None if modes is None else modes.upper(base, weights.keys(), ball, radius),
            theorem=None if modes is None else modes.theorem(base, weights.keys(), radius),
            norm=self.norm,
            weight_norm=self.weight_norm,
            search=self.search,
            parameters=tuple(weights),
            samples=self.samples,
            steps=self._climb,
            horizon=self.horizon if self.inputs is None else self.inputs.shape[1],
            dt=dt,
            seed=self.seed,
            evaluations=1 + len(found) * self.samples * (self._climb + 1),
        )

    def _distance(self, model: nn.Module, target: Any, dt: float, like: Tensor) -> Distance:
        if self.norm != "kernel_l1":
            inputs = checked_inputs(model, target, self.inputs, self.norm, self.horizon, self.seed)
            return output_distance(model, target, self.norm, inputs, dt, like)
        if self.inputs is not None:
            shape = tuple(self.inputs.shape)
            raise ArgumentError("inputs", "None under norm 'kernel_l1', which needs no inputs", f"shape {shape}")
        return kernel_distance(model, target, self.horizon, dt, like)


def _checked_radii(radii: Sequence[float] | np.ndarray | Tensor) -> np.ndarray:
    radius = np.asarray(radii, dtype=np.float64)
    if radius.ndim != 1 or not len(radius):
        raise ArgumentError("radii", "a list of one or more numbers", f"shape {radius.shape}")
    radius = np.sort(radius)  # NaN is sorted last
    if not (radius[0] >= 0 and np.isfinite(radius[-1])):
        raise ArgumentError("radii", "finite numbers >= 0", f"{radius[0] if radius[0] < 0 else radius[-1]}")
    return radius


def _time_step(model: nn.Module, target: Any) -> float:
    """Return the time step of the target, or else of the model, or else 1."""
    return next((dt for owner in (target, model) if (dt := own_step(owner)) is not None), 1.0)

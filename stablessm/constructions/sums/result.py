"""The result of a fit: a sum of exponentials with methods to evaluate, stream, save and convert it to a layer."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from stablessm import record
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.constructions.sums._modes import Domain

if TYPE_CHECKING:
    import torch

    from stablessm.layers import LRU, RealSSM
    from stablessm.reparam import Reparameterization

TimeKind: TypeAlias = Literal["discrete", "continuous"]
Norm: TypeAlias = Literal["sup", "l2"]
_ARRAYS = ("rates", "weights", "rate_errors", "weight_errors")
FORMAT = "stablessm exponential sum"
_SHOWN = 8  # number of modes in a text
_CHUNK = 1 << 17  # number of values that are computed together, so that they stay in the cache


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class ExponentialSum(Result):
    """A sum of decaying exponentials, ρ̂(t) = Re Σ_i weights_i e^{rates_i t}, Re rates_i < 0, with its measured errors.

    An entry of ``rates`` and ``weights`` is a real mode or, if the rate is complex, a conjugate pair of modes. If
    ``is_complex``, ρ̂ is the sum without the real part, and each entry is one complex mode. In discrete time only
    t = 0, dt, 2dt, … matter, and a rate with Im rate · dt = π is a negative real eigenvalue.

    >>> es = ExponentialSum(rates=np.array([-0.5]), weights=np.array([2.0]), dt=1.0, horizon=10)
    >>> es(np.array([0.0, 1.0])).round(4).tolist(), es.order
    ([2.0, 1.2131], 1)
    >>> y, state = es.step(1.0)
    >>> y, state = es.step(0.0, state)
    >>> round(float(y), 4)
    1.2131
    """

    rates: np.ndarray
    """Rates (m,), float64 if all are real, otherwise complex128."""
    weights: np.ndarray
    """Weights (m,) or (m, d_out, d_in), with the dtype of the rates."""
    dt: float
    horizon: int
    """Number of steps: errors are measured at t = 0, dt, …, horizon dt (or at given times, from start to end)."""
    time: TimeKind = "discrete"
    error: float = math.nan
    """Supremum of |ρ - ρ̂| over all entries, at the samples or grid points; for a function in continuous time, at all
    times."""
    l1_error: float = math.nan
    """Sum Σ |ρ - ρ̂| on the grid (for a matrix, the largest row sum): outputs differ by at most l1_error sup |x| up to
    the horizon. In continuous time it is ∫ |ρ - ρ̂|, measured by the trapezoidal rule and not certified, and at least
    dt Σ |ρ - ρ̂|. For given times it begins at ``start``: [0, start) is left out, and in discrete time the steps
    between the given times are interpolated."""
    relative_error: float = math.nan
    """Supremum of |ρ - ρ̂| / |ρ| (for a matrix, of its largest entries); infinite if ρ = 0 where ρ̂ is not."""
    lower_bound: float = math.nan
    """Lower bound of ``l1_error`` for every sum of this order: σ_{order+1} of the Hankel matrix of the samples, see
    :func:`exponential_sum`."""
    condition: float = math.nan
    """2-norm condition number of the modes on the grid, each scaled to norm one: the factor by which rounding errors of
    the samples are amplified in the weights. For a long horizon it is computed from at least 4000 samples, which are
    denser toward 0 and weighted by their spacing."""
    seconds: float = math.nan
    """Seconds that the fit took."""
    method: str = "given"
    """Name of the algorithm that found the sum."""
    start: float = 0.0
    """First time at which the errors were measured."""
    end: float = math.nan
    """Last time at which the errors were measured (default: horizon dt)."""
    is_complex: bool = False
    """Whether ρ̂ is the complex sum instead of its real part. Rates and weights are then complex128."""
    norm: Norm = "sup"
    """Norm that was minimized: ``sup``, the supremum of the error, or ``l2``, its weighted sum of squares."""
    residual: float = math.nan
    """For ``norm="l2"``: weighted root mean square of the difference between the samples and the sum."""
    noise: float = math.nan
    """For ``norm="l2"``: standard deviation of the noise of a sample with average weight, given or estimated. For
    complex samples it is the standard deviation of the real part and of the imaginary part."""
    rate_errors: np.ndarray | None = None
    """For ``norm="l2"``: standard errors of the rates (m,), separately for real and imaginary parts."""
    weight_errors: np.ndarray | None = None
    """For ``norm="l2"``: standard errors of the weights, in the shape of the weights."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and not (isinstance(value, Real) and not isinstance(value, bool)):
                raise ArgumentError(field.name, "a number", quoted(value))
            if field.name in ("rates", "weights") and np.asarray(value).dtype.kind not in "fciu":
                raise ArgumentError(field.name, "numbers", quoted(value))
        rates = np.asarray(self.rates)
        rates = rates.astype(np.complex128) if self.is_complex or rates.imag.any() else rates.real.astype(np.float64)
        weights = np.array(self.weights)
        if not 0 < self.dt < math.inf:
            raise ArgumentError("dt", "a positive number", self.dt)
        if not 0 <= self.horizon < math.inf:
            raise ArgumentError("horizon", "a number of steps, from 0 up", self.horizon)
        if self.time not in get_args(TimeKind):
            raise ArgumentError("time", "'discrete' or 'continuous'", quoted(self.time))
        if rates.ndim != 1:
            raise ArgumentError("rates", "shape (m,)", f"shape {rates.shape}")
        if weights.ndim not in (1, 3) or len(weights) != len(rates):
            raise ArgumentError("weights", f"shape ({len(rates)},) or ({len(rates)}, d_out, d_in)", weights.shape)
        for name, values in (("rates", rates), ("weights", weights)):
            if not np.isfinite(values).all():
                raise ArgumentError(name, "finite numbers", values[~np.isfinite(values)][0])
        if not (rates.real < 0).all():
            raise ArgumentError("rates", "negative real parts", rates[rates.real >= 0][0])
        if not np.iscomplexobj(rates):
            weights = weights.real
        weights = weights.astype(rates.dtype)
        for array in (rates, weights):
            array.flags.writeable = False
        object.__setattr__(self, "rates", rates)
        object.__setattr__(self, "weights", weights)
        if math.isnan(self.end):
            object.__setattr__(self, "end", float(self.horizon * self.dt))

    @property
    def order(self) -> int:
        """Return the number of real states per input: one for each real eigenvalue and two for each conjugate pair.

        For a complex sum it is the number of (complex) modes.
        """
        return self._domain.order(self.rates)

    @property
    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues e^{rates dt} of the recurrence per step, one per rate; float64 if all are real."""
        values = np.exp(self.rates * self.dt)
        if not self.is_complex:
            values = np.where(self._domain.single(self.rates), values.real, values)
        return values if self.is_complex or values.imag.any() else values.real

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the kernel: () for a scalar kernel, otherwise (d_out, d_in)."""
        return self.weights.shape[1:]

    @property
    def tail(self) -> float:
        """Return an upper bound of the sum (in continuous time, the integral) of |ρ̂| after the horizon.

        Let ρ be the kernel to which the sum was fitted. If ρ is zero after the horizon, the outputs of the sum and of ρ
        for an input x differ by at most (l1_error + tail + rounding) sup |x| at all times.
        """
        decay = -self.rates.real
        if self.time == "discrete":
            sums = np.exp(-decay * self.dt * (self.horizon + 1)) / -np.expm1(-decay * self.dt)
        else:
            sums = np.exp(-decay * self.end) / decay
        return float(sums @ self._sizes)

    @property
    def rounding(self) -> float:
        """Return an estimate of the rounding error of the outputs in float64, for inputs of a size of at most 1.

        A state is at most g / (1 - |λ|), with g as in :meth:`step`. Each step rounds the state, λ itself is rounded,
        and the effect of a rounding error lasts for about 1 / (1 - |λ|) steps. The estimate is large if large weights
        cancel.
        """
        decay = -np.expm1(self.rates.real * self.dt)
        return float(2 * np.finfo(np.float64).eps * (np.abs(self._gain) / decay**2) @ self._sizes)

    def __call__(self, t: ArrayLike) -> np.ndarray:
        """Evaluate the sum ρ̂ at times t ≥ 0 of any shape; return an array of shape t.shape, or (*t.shape, d_out,
        d_in).
        """
        t = np.asarray(t, dtype=np.float64)
        flat = t.reshape(-1)
        weights = self.weights.reshape(len(self.rates), math.prod(self.shape))
        parts = np.array_split(flat, 1 + len(flat) * len(self.rates) // _CHUNK)
        sums = np.concatenate([np.exp(part[:, None] * self.rates) @ weights for part in parts])
        return (sums if self.is_complex else sums.real).reshape((*t.shape, *self.shape))

    def step(self, x_t: ArrayLike, state: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Advance the recurrence by one step in NumPy; return the output and the new state.

        The state h becomes λ h + g x_t, with the eigenvalues λ = e^{rates dt}, and the output is y_t = Re Σ_i w_i h_i.
        (For a complex sum, the real part is not taken.) In discrete time g = 1, so that y_k = Σ_j ρ̂((k - j) dt) x_j.
        In continuous time g = (λ - 1) / rate, so that y_k is exactly ∫ ρ̂(s) x(t - s) ds for an input that is constant
        during each step.

        Args:
            x_t: input of any shape (…), one stream per entry; (…, d_in) for a matrix-valued sum.
            state: state that the previous step returned (default: zero state).

        Returns:
            The output y_t in the shape of x_t, or (…, d_out), and the new state, (…, m) or (…, m, d_in).
        """
        x = np.asarray(x_t, dtype=np.complex128 if self.is_complex and np.iscomplexobj(x_t) else np.float64)
        if self.shape and x.shape[-1:] != self.shape[1:]:
            raise ArgumentError("x_t", f"a last dimension of {self.shape[1]}", f"shape {x.shape}")
        eigenvalues, gain = self.eigenvalues, self._gain
        if self.shape:
            eigenvalues, gain, x = eigenvalues[:, None], gain[:, None], x[..., None, :]
        else:
            x = x[..., None]
        drive = gain * x
        if state is not None and (not isinstance(state, np.ndarray) or state.shape != drive.shape):
            raise ArgumentError(
                "state", f"an array of shape {drive.shape}", getattr(state, "shape", type(state).__name__)
            )
        state = drive if state is None else eigenvalues * state + drive
        weights = self.weights if np.iscomplexobj(state) else self.weights.real
        y = np.einsum("moi,...mi->...o", weights, state) if self.shape else state @ weights
        return (y if self.is_complex else y.real), state

    def to_layer(self, map: str | Reparameterization = "best", *, dtype: torch.dtype | None = None) -> RealSSM | LRU:
        """Build a layer without bias whose kernel is this sum, with any reparameterization of the eigenvalues.

        In discrete time the layer is a ``RealSSM`` if all eigenvalues are positive, otherwise an ``LRU``; its output is
        y_k = Σ_j ρ̂((k - j) dt) x_j. In continuous time it is a ``RealSSM`` with this dt and zero-order hold if all
        rates are real, otherwise an ``LRU`` that computes the same outputs. A complex sum gives an ``LRU`` with 2 d_out
        outputs: all real parts, then all imaginary parts.

        If ``map`` is ``"best"``, its parameter b is chosen so that the map reaches the fastest rate. The default of
        ``dtype`` is the default dtype of PyTorch; an error below 1e-6 requires ``torch.float64``.

        >>> es = ExponentialSum(np.array([-0.5, -0.1]), np.array([2.0, 1.0]), dt=1.0, horizon=10)
        >>> es.to_layer(map="softplus")
        RealSSM(1, 2, 1, map=softplus(time='discrete'), discrete, linear)
        """
        from stablessm.constructions.sums._layer import to_layer

        return to_layer(self, map, dtype)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the sum to ``path`` (.safetensors), and its rates and weights also to a CSV file of the same name."""
        import torch

        from stablessm import _tensors

        path = Path(path)
        if path.suffix != ".safetensors":
            raise ArgumentError("path", "a file name that ends in .safetensors", str(path))
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: facts.pop(name) for name in _ARRAYS}
        arrays = {name: torch.from_numpy(_pairs(array)) for name, array in given.items() if array is not None}
        _tensors.save(path, arrays, json.dumps(record.plain({"format": FORMAT, **facts})))
        table = record.atomic(path.with_suffix(".csv"))
        with table as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self._rows())
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a sum from a file that :meth:`save` wrote, with exactly the same numbers."""
        from stablessm import _tensors

        expected = "a file written by ExponentialSum.save"
        text, tensors, _ = _tensors.load(path, expected)
        with record.reading(path, expected):
            content = json.loads(text or "{}")
            if content.pop("format", None) != FORMAT:
                raise ValueError("another format")
            arrays = {name: _joined(tensors[name].numpy()) for name in _ARRAYS if name in tensors}
            numbers = {f.name for f in fields(cls) if f.type == "float"}
            facts: dict[str, Any] = {
                name: float(value) if name in numbers else value for name, value in content.items()
            }
            return cls(**facts | arrays)

    def _rows(self) -> Iterator[list[Any]]:
        """Yield the rows of the CSV file: a header, then one row per rate with its weights in row-major order."""
        entries = ["".join(f"_{i}" for i in place) for place in np.ndindex(self.shape)]
        yield ["rate_re", "rate_im", *(f"weight{entry}_{part}" for entry in entries for part in ("re", "im"))]
        for rate, weight in zip(_pairs(self.rates), _pairs(self.weights), strict=True):
            yield [repr(float(value)) for value in (*rate, *weight.reshape(-1))]

    @property
    def _gain(self) -> np.ndarray:
        """Return the factor g of the input of each state in :meth:`step`: 1, or (λ - 1) / rate in continuous time."""
        if self.time == "discrete":
            return np.ones_like(self.eigenvalues)
        gain: np.ndarray = np.expm1(self.rates * self.dt) / self.rates
        return gain

    @property
    def _sizes(self) -> np.ndarray:
        """Return the size of each mode, (m,): |weight| or, for weight matrices, the largest row sum of |weights|."""
        sizes = np.abs(self.weights)
        return sizes if not self.shape else sizes.sum(-1).max(-1)

    @property
    def _domain(self) -> Domain:
        return Domain(
            self.dt, self.time == "discrete", real=False, positive=False, slowest=0.0, is_complex=self.is_complex
        )

    @property
    def _modes(self) -> str:
        """Return a text for ``print`` with one line per mode (at most 8): its rate and weight with standard errors."""
        if self.rate_errors is None or self.weight_errors is None:
            return ""
        lines = [f"\n  rate {_with_error(*pair)}" for pair in zip(self.rates, self.rate_errors, strict=True)]
        if not self.shape:
            shown = (f", weight {_with_error(*pair)}" for pair in zip(self.weights, self.weight_errors, strict=True))
            lines = [line + weight for line, weight in zip(lines, shown, strict=True)]
        more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        return "".join(lines[:_SHOWN]) + more

    def __str__(self) -> str:
        unit = ("" if self.time == "discrete" else f", {self.time} time") + ", complex" * self.is_complex
        shape = "" if not self.shape else f", {self.shape[0]}x{self.shape[1]}"
        scales = -1 / self.rates.real
        spread = f", time scales {scales.min():.3g} to {scales.max():.3g}" if len(scales) else ""
        head = f"exponential sum of order {self.order} ({len(self.rates)} terms{shape}{unit}){spread}: "
        if self.norm == "l2":
            level = f"residual {self.residual:.3g} (rms), noise {self.noise:.3g}"
            return f"{head}{level}, by {self.method} in {self.seconds:.3g} s{self._modes}"
        return (
            f"{head}"
            f"sup error {self.error:.3g}, L1 error {self.l1_error:.3g}, relative error {self.relative_error:.3g}; "
            f"Hankel limit {self.lower_bound:.3g}, by {self.method} in {self.seconds:.3g} s"
        )

    __repr__ = __str__


class FitError(NumericalError):
    """Raised if no sum meets the tolerance; the message states a reason and a remedy, and ``best`` is the best sum
    found.
    """

    def __init__(self, what: str, remedy: str, best: ExponentialSum) -> None:
        super().__init__(what, remedy)
        self.best = best


def _with_error(value: Any, error: Any) -> str:
    """Format a number with its standard error, such as 12.34 ± 0.05; a complex number gets an error for each part."""
    if np.iscomplexobj(value):
        return f"{value:.4g} ± ({error.real:.1g}, {error.imag:.1g}i)"
    return f"{value:.4g} ± {error:.1g}"


def _pairs(values: np.ndarray) -> np.ndarray:
    """Split complex values into real and imaginary parts along a new last axis of length 2."""
    return np.stack([values.real, values.imag], axis=-1)


def _joined(pairs: np.ndarray) -> np.ndarray:
    return pairs[..., 0] + 1j * pairs[..., 1] if pairs[..., 1].any() else pairs[..., 0]

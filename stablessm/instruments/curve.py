"""The result of a memory measurement: a curve that can be fitted, plotted, saved and summarized."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from stablessm import record
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._renamed import reading_a_file, renamed
from stablessm.instruments import decay
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments._decay_modes import informed
from stablessm.instruments.decay import DecayFit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ARRAYS = ("time", "value", "maximizer", "inputs", "by_input", "slowest")


DISCRETE = ("steps", "tokens")
"""Units of discrete time, in which there is nothing between two samples."""

MOST_POINTS = 4000
"""Largest number of points of a curve in an interactive figure."""


@final
@renamed("maximiser")
@checked
@dataclass(frozen=True, eq=False, repr=False)
class MemoryCurve(Result):
    """A memory function M(t) measured on a grid of times, with its normalization, rounding level and inputs.

    >>> curve = MemoryCurve(np.arange(50) * 0.1, np.exp(-np.arange(50) * 0.1), unit="s")
    >>> curve.decay().kind, round(curve.decay().rate, 6), round(curve.memory_time(0.1), 6)
    ('exponential', 1.0, 2.3)
    """

    _drawn = ("time", "value")
    time: np.ndarray
    """Times (T,), in ``unit``."""
    value: np.ndarray
    """Values of M at these times (T,), in output per input and time."""
    unit: str = "steps"
    norm: str = "unit"
    """The normalization of M: ``ball``, ``plus_one`` or ``unit``."""
    bound: float = 1.0
    exact: bool = False
    """Whether ``value`` is the exact supremum over inputs; otherwise it is a lower bound, found by search."""
    maximizer: np.ndarray | None = None
    """Constant input that gave the value at each time (T, d_input)."""
    floor: float = 0.0
    """Values up to this level are rounding errors."""
    note: str = ""
    """Describes how the curve was measured."""
    inputs: tuple[str, ...] | None = None
    """Names of the inputs that were measured separately."""
    by_input: np.ndarray | None = None
    """Values of one curve for each named input (number of inputs, T)."""
    dt: float = math.nan
    """Time between samples (default: from ``time``)."""
    slowest: np.ndarray | None = None
    """Rates of the slowest modes of the state at the fixed points that it reaches, per unit of time: one rate for each
    input of ``by_input`` (or of the norm ``unit``), or the lowest of all inputs and the largest of the inputs that lead
    at the end. None if unknown."""

    def __post_init__(self) -> None:
        if np.ndim(self.time) != 1:
            raise ArgumentError("time", "times (T,)", self.time)
        if math.isnan(self.dt) and len(self.time) > 1:
            object.__setattr__(self, "dt", float(self.time[1] - self.time[0]))

    def decay(self) -> DecayFit:
        """Return the kind of decay of the curve, with the rate, exponent or stretch and its interval."""
        return self._fit

    @cached_property
    def _fit(self) -> DecayFit:
        fit = decay.fit_decay(self.time, self.value, floor=self.floor or None)
        if self.slowest is None:
            return fit
        searched = self.by_input is None and self.norm != "unit"
        rates = self.slowest if searched else self.slowest.min(keepdims=True)
        return informed(fit, self.time, self.value, rates)

    def memory_time(self, eps: float) -> float:
        """Return the memory time: the last time at which M is above ``eps`` times its largest value.

        >>> MemoryCurve(np.arange(30), 0.3 ** np.arange(30)).memory_time(0.01)
        3.0
        """
        return decay.memory_time(self.time, self.value, eps, fit=self._fit)

    def effective_length(self) -> float:
        """Return the effective length: the area under M, divided by the largest value of M.

        A memory function that is constant over this length, at the largest value of M, has the same area.

        For the units steps and tokens the length is Σ M[k] / max M, for any other unit of time ∫ M dt / max M. The
        fitted law continues M after the last sample.

        >>> round(MemoryCurve(np.arange(30), 0.5 ** np.arange(30)).effective_length(), 6)
        2.0
        >>> time = np.arange(3000) * 0.01
        >>> round(MemoryCurve(time, np.exp(-time), unit="s").effective_length(), 4)
        1.0
        """
        length, top = decay.effective_length(self.time, self.value, fit=self._fit), float(self.value.max())
        if self.unit not in DISCRETE or not top:
            return length
        # the sum is the trapezoidal integral plus half of the first value, and half of the last if nothing follows it
        open_end = self._fit.kind in ("finite", "undecided") and self._fit.used[1] >= self.time[-1]
        return length + self.dt * float(self.value[0] + open_end * self.value[-1]) / top / 2

    def half_life(self) -> float:
        """Return the half-life: the time by which half of the area ∫ M dt under the curve has passed."""
        return decay.half_life(self.time, self.value, fit=self._fit)

    def of(self, name: str) -> MemoryCurve:
        """Return the curve of a single input, by its name in ``inputs``."""
        if self.inputs is None or self.by_input is None or name not in self.inputs:
            raise ArgumentError("name", f"one of {', '.join(self.inputs or ())}", name)
        i, own = self.inputs.index(name), self.slowest
        own = own if own is None else own[[i]]
        row = MemoryCurve(self.time, self.by_input[i], self.unit, self.norm, self.bound, True, floor=self.floor)
        return replace(row, note=self.note, slowest=own)

    def plot(self, ax: Axes | None = None, *, fit: bool = True, label: str = "memory", **style: Any) -> Axes:
        """Plot the curve with a logarithmic y axis, the fitted decay (unless ``fit`` is False) and the rounding level.

        ``label`` is the name of the curve in the legend, and ``style`` are options of Matplotlib for its line.
        """
        ax = axes_or_new(ax)
        (line,) = ax.semilogy(self.time, self._positive(self.value), label=label, **style)
        for kind, time, value in self._companions(fit):
            dash = "--" if kind == "fit" else ":"
            ax.semilogy(time, value, dash, color=line.get_color(), lw=1, label=self._label(kind))
        ax.set(xlabel=f"time since the input [{self.unit}]", ylabel="memory function M(t)")
        ax.legend()
        return ax

    def plotly(self, *, fit: bool = True, label: str = "memory") -> Figure:
        """Return the plot of the curve (as :meth:`plot` draws it) as an interactive Plotly figure."""
        from plotly.graph_objects import Figure, Scatter

        shown = _thinned(len(self.time))
        figure = Figure(Scatter(x=self.time[shown], y=self._positive(self.value)[shown], mode="lines", name=label))
        for kind, time, value in self._companions(fit):
            dash, some = {"dash": "dash" if kind == "fit" else "dot"}, _thinned(len(time))
            figure.add_trace(Scatter(x=time[some], y=value[some], mode="lines", line=dash, name=self._label(kind)))
        figure.update_yaxes(type="log", title="memory function M(t)", exponentformat="power")
        figure.update_xaxes(title=f"time since the input [{self.unit}]")
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the curve to ``path``, an ``.npz`` file."""
        arrays = {name: value for name in _ARRAYS if (value := getattr(self, name)) is not None}
        meta = {key: getattr(self, key) for key in ("unit", "norm", "bound", "exact", "floor", "note", "dt")}
        record.save_arrays(path, "MemoryCurve", meta, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a curve from a file that :meth:`save` wrote."""
        meta, arrays = record.load_arrays(path, "MemoryCurve")
        with record.reading(path, "a curve that MemoryCurve.save wrote"):
            fields: dict[str, Any] = {**arrays, **meta, "dt": float(meta["dt"])}
            if "inputs" in fields:
                fields["inputs"] = tuple(fields["inputs"].tolist())
            with reading_a_file():
                return cls(**fields)

    def __str__(self) -> str:
        bound = "exact" if self.exact else "a lower bound"
        return f"memory over {self.time[-1]:g} {self.unit} ({self.norm}, {bound}): {self._fit.reason}"

    def _positive(self, value: np.ndarray) -> np.ndarray:
        return np.where(value > 0, value, np.nan)  # a gap, not a fall to minus infinity

    def _companions(self, fit: bool) -> list[tuple[str, np.ndarray, np.ndarray]]:
        lines = []
        if fit and self._fit.kind in ("exponential", "polynomial", "stretched"):
            low = self._positive(self.value)
            curve = self._fit(self.time)
            lines.append(("fit", self.time, np.where(curve >= np.nanmin(low) / 10, curve, np.nan)))
        if self.floor > 0:
            lines.append(("floor", self.time[[0, -1]], np.full(2, self.floor)))
        return lines

    def _label(self, kind: str) -> str:
        if kind == "floor":
            return "rounding"
        if self._fit.kind == "exponential":
            return f"exponential, rate {self._fit.rate:.3g} per {self.unit}"
        if self._fit.kind == "stretched":
            return f"stretched exponential, stretch {self._fit.stretch:.3g}"
        return f"polynomial, exponent {self._fit.exponent:.3g}"


def _thinned(n: int) -> np.ndarray:
    """Select at most ``MOST_POINTS`` of n samples, half of them evenly and half logarithmically spaced."""
    if n <= MOST_POINTS:
        return np.arange(n)
    half = MOST_POINTS // 2
    return np.unique(np.concatenate([np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1]).astype(int))

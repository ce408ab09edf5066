"""Readback: how much of the past inputs a linear probe recovers from the state of a recurrent model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from stablessm import _tensors
from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError
from stablessm.instruments import _probe
from stablessm.instruments.adapters import as_stateful, has_adapter, name_of
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.dynamics._layout import Layout, layout_of, place_of
from stablessm.instruments.memory import time_step


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class Readback(Result):
    """The result of :func:`readback`: the share of past inputs that a linear probe recovers from a state."""

    _drawn = ("time", "explained")
    time: np.ndarray
    """Time since the input (K,): the lags 0, 1, … times dt."""
    explained: np.ndarray
    """Fraction (0 to 1) of the variance of the input at each lag that the probe explains on held-out data (K,)."""
    new: np.ndarray
    """Capacity that each lag adds (K,): the explained variance of the part of the input that later inputs do not
    determine, summed over channels. For white noise of one channel it equals ``explained``, up to sampling errors."""
    state_size: int
    """Number of real values in the state; a complex value counts twice."""

    @property
    def capacity(self) -> float:
        """Return Jaeger's memory capacity, the sum of ``new`` over all lags, which is at most ``state_size``."""
        return float(self.new.sum())

    def reach(self, level: float = 0.5) -> float:
        """Return the longest lag, as a time, up to which at least the fraction ``level`` of the variance is explained.

        The result is nan if this fraction is explained at no lag.
        """
        if not 0 < level <= 1:
            raise ArgumentError("level", "above 0 and at most 1", level)
        enough = np.minimum.accumulate(self.explained) >= level
        return float(self.time[enough][-1]) if enough.any() else float("nan")

    def __str__(self) -> str:
        half = self.reach()
        return (
            f"capacity {self.capacity:.4g} of {self.state_size} numbers; half of the variance "
            + (f"up to {half:.4g} back" if half == half else "of no input")
            + f", looked {self.time[-1]:.4g} back"
        )


@checked
def readback(
    model: Any,
    data: Tensor | np.ndarray,
    *,
    lags: Size | None = None,
    states: Callable[[Tensor], Tensor] | None = None,
    dt: float | None = None,
) -> Readback:
    """Measure how much of the input k steps ago a linear probe recovers from the state, on held-out data.

    For every lag k, a ridge regression predicts the input x[t-k] from the whole state (all layers, real and imaginary
    parts). The regression is fitted on the first 60 % of the sequences. The ridge parameter is chosen on the next 20 %,
    and the predictions are compared with the inputs of the last 20 %. With fewer than 5 sequences the time steps are
    split instead, with gaps as long as the largest lag.

    Args:
        model: One of our layers, anything called as ``model(x, state) -> (y, state)``, a ``torch.nn`` recurrence, or a
            recurrent Hugging Face model such as Mamba. For a Hugging Face model, ``data`` is added to the embedding of
            a neutral token: the begin token, if the model has one.
        data: Inputs (batch, time, d_input). With white noise, the result is the memory of the model; with the data
            of a task, it is the memory that the model has for this task.
        lags: Number of lags, beginning with lag 0, the latest input (default: a quarter of the time, 1 to 100).
        states: Function from inputs (batch, time, d_input) to states (batch, time, size), for a model that does not
            return its state, or to probe another quantity.
        dt: Time between samples (default: the model's, or 1).

    >>> from torch import nn
    >>> found = readback(nn.GRU(1, 8, batch_first=True), torch.randn(10, 120, 1), lags=10)
    >>> found.state_size, 0 < found.capacity <= 8, bool(found.explained[0] > found.explained[9])
    (8, True, True)
    """
    x = _checked(data)
    count = max(1, min(x.shape[1] // 4, 100)) if lags is None else lags
    step = time_step(model, dt)
    with evaluating(model), torch.no_grad():
        found = _collected(model, x) if states is None else _real_rows(states(x), x)
    if not bool(found.isfinite().all()):
        raise NumericalError("the state is not finite", "use a stable model, or data of a smaller scale")
    train, validation, test = _split(found, x.to(torch.float64).cpu(), count)
    predicted = _probe.predictions(train, validation, test, count)
    new = _probe.new_explained(test.targets, predicted).reshape(count, -1).sum(1)
    return Readback(
        time=step * np.arange(count),
        explained=_probe.explained(test.targets, predicted, count).numpy(),
        new=new.numpy(),
        state_size=found.shape[-1],
    )


def _checked(data: Tensor | np.ndarray) -> Tensor:
    x = _tensors.as_tensor(data).detach()
    if x.dim() != 3 or not x.numel() or not x.is_floating_point():
        raise ArgumentError("data", "real, (batch, time, d_input)", f"{x.dtype}, shape {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise ArgumentError("data", "finite numbers", "NaN or infinity")
    return x


def _collected(model: Any, x: Tensor) -> Tensor:
    """Return the state after every step, (B, T, F), by running one step at a time."""
    expected = "a recurrent model that returns its state, model(x, state) -> (y, state), or states="
    try:
        adapter = as_stateful(model, d_input=x.shape[-1])
    except ArgumentError as error:
        if has_adapter(model):
            raise
        raise ArgumentError("model", expected, f"{name_of(model)} ({error})") from error
    x, place = x.to(adapter.device, adapter.dtype), place_of(adapter)
    state: Any = None
    layout: Layout | None = None
    rows: list[Tensor] = []
    for t in range(x.shape[1]):
        _, state = adapter.run(x[:, t : t + 1], state)
        layout = layout or layout_of(state, place, precise=True)
        if not layout.size:
            raise ArgumentError("model", expected, f"{name_of(model)}, which returns none")
        rows.append(layout.pack(state, place))
        if rows[-1].shape[:1] != x.shape[:1]:
            raise ArgumentError("model", f"a state with {len(x)} rows (batch)", f"{len(rows[-1])} rows")
    return torch.stack(rows, 1)


def _real_rows(found: object, x: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.dim() < 3 or found.shape[:2] != x.shape[:2]:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ArgumentError("states", f"a tensor ({x.shape[0]}, {x.shape[1]}, size)", got)
    found = found.detach().cpu()
    return (torch.view_as_real(found) if found.is_complex() else found).flatten(2).to(torch.float64)


def _split(found: Tensor, x: Tensor, lags: int) -> tuple[_probe.Samples, ...]:
    """Split states and the past inputs at all lags into training, validation and test samples for the probe."""
    batch, steps, channels = x.shape
    usable = steps - lags + 1
    if usable < 1:
        raise ArgumentError("lags", f"at most {steps} (the time steps of data)", lags)
    past = torch.stack([x[:, lags - 1 - k : steps - k] for k in range(lags)], 2).flatten(2)  # (B, usable, lags · d)
    found = found[:, lags - 1 :]
    if batch >= 5:
        cuts = [0, round(0.6 * batch), round(0.8 * batch), batch]
        pieces = [(slice(a, b), slice(None)) for a, b in itertools.pairwise(cuts)]
    else:
        cuts = [0, round(0.6 * usable), round(0.8 * usable), usable]
        gaps = [0, lags, lags]  # a lag must not reach back into the training samples
        pieces = [(slice(None), slice(a + gap, b)) for (a, b), gap in zip(itertools.pairwise(cuts), gaps, strict=True)]
    samples = tuple(_probe.Samples(found[piece].flatten(0, 1), past[piece].flatten(0, 1)) for piece in pieces)
    least = min(len(part.features) for part in samples)
    if least <= lags * channels:
        expected = f"more than {lags * channels} held-out samples (lags times channels): more data or fewer lags"
        raise ArgumentError("data", expected, f"{least}, of {batch} sequences of {steps} steps")
    return samples

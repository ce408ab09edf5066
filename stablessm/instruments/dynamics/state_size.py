"""The effective state size: the number of independent values through which the past of a model affects its future."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._checked import Seed, Share, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._progress import working
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.dynamics._flow import Flow, flow

CHANNELS = 8
"""Largest number of channels of an input or output; wider inputs and outputs are projected at random."""

ROUNDING = 1e-14
"""Smallest relative rounding error that is assumed."""

WITHIN = 0.75
"""Share of the past and of the future that must give the same size, unless the size still grows with their length."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class EffectiveStateSize(Result):
    """The result of :func:`effective_state_size`: the number of values that carry the influence of the past of a model
    on its future.
    """

    size: int
    """Effective state size: the largest rank of the past-to-future operator over steps and sequences."""
    step: np.ndarray
    """Steps at which past and future are separated (S,)."""
    by_step: np.ndarray
    """Largest rank over sequences at each step (S,)."""
    entropy: np.ndarray
    """Exponential of the entropy of the normalized singular values at each step (S,): a size without a threshold. The
    entropy does not depend on the direct effect of x[t] on y[t]."""
    by_layer: np.ndarray
    """Rank of the operator if one of the L parts of the state alone carries the past (L, S); L is 0 without a state."""
    layers: tuple[str, ...]
    """Name and shape of each part of the state."""
    singular_values: np.ndarray
    """Singular values at the step with the largest rank, relative to the largest singular value."""
    tol: float
    """Singular values up to this fraction of the largest are treated as zero; at least the model's rounding error."""
    state_size: int | None
    """Number of values in the state; complex values count once, as in ``size``. None without a state."""
    complete: bool = True
    """False if the size still grows with the number of steps; longer inputs may then give a larger size."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the singular values and the tolerance."""
        ax = axes_or_new(ax)
        ax.semilogy(np.arange(1, len(self.singular_values) + 1), np.maximum(self.singular_values, 1e-18), "o", ms=3)
        ax.axhline(self.tol, color="0.6", linewidth=0.8)
        ax.set(xlabel="index", ylabel="singular value, relative", title=f"effective state size {self.size}")
        return ax

    def __str__(self) -> str:
        held = "" if self.state_size is None else f" of {self.state_size} in the state"
        return (
            f"{self.size}{held} (singular values above {self.tol:.1g} of the largest); "
            f"entropy {self.entropy.max():.4g}, {len(self.step)} steps"
            + ("" if self.complete else "; it still grows with the number of steps: give longer inputs")
        )


@checked
def effective_state_size(
    model: Any, inputs: Tensor | ArrayLike, tol: Share = 1e-9, *, steps: Size = 3, seed: Seed = 0, progress: bool = True
) -> EffectiveStateSize:
    """Measure the effective state size: the number of values through which the past of a model affects its future.

    At a step t, the past-to-future operator is the derivative of the outputs y[t], y[t+1], … with respect to the inputs
    x[t], x[t-1], …. The rank of this operator is the number of independent values that a state must contain at t
    (effective state size). For a linear model the operator is the Hankel matrix of the kernel: a model with N modes has
    rank N, and a window over W > 1 inputs has rank W.

    The effect of x[t] on y[t] is not memory, and neither the rank nor the entropy contains it (a window over one input
    has rank 0). The rank counts the values of earlier inputs that y[t], y[t+1], … need, and the values of x[t] that
    y[t+1], y[t+2], … need and that no earlier input can set. The rank is the smallest rank that the operator can have
    if the effect of x[t] on y[t] is unknown. If y[t] does not depend on x[t] at all, the future starts at y[t+1]: a
    delay of D steps has rank D. If the state has complex numbers, the operator has complex entries and the future
    starts at y[t+1]: N complex modes have rank N.

    Args:
        model: One of our layers or models, a ``torch.nn`` recurrence, ``(x, state) -> (y, state)``, a Hugging Face
            model, or any causal callable from (batch, time, d_input) to (batch, time, d_output). A copy of a module
            runs in float64 if that is possible.
        inputs: (time,), (time, d_input), (batch, time, d_input), or tokens (time,) or (batch, time). The rank cannot be
            larger than the number of steps before or after t: give at least twice the expected size.
        tol: Singular values up to this fraction of the largest are treated as zero.
        steps: Number of steps at which past and future are separated, around the middle.
        seed: Seed of random projections of inputs and outputs with more than 8 channels.
        progress: Whether a long computation shows a progress bar.

    >>> window = lambda x: (x.cumsum(1) - torch.nn.functional.pad(x, (0, 0, 5, 0))[:, :-5].cumsum(1)) / 5
    >>> effective_state_size(window, torch.randn(40)).size
    5
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), flow(model, inputs, precise=True) as found, working("effective_state_size", progress) as tell:
        length = found.x.shape[1]
        if length < 4:
            raise ArgumentError("inputs", "at least 4 steps", length)
        middle, reach = length // 2, length // 8 if steps > 1 else 0
        chosen = sorted({round(t) for t in np.linspace(middle - reach, middle + reach, steps)})
        rows = []
        for row in range(len(found.x)):
            for t in chosen:
                rows.append(_at(found, row, min(max(t, 1), length - 2), tol, generator))
                tell()
    return _result(found, chosen, rows, tol)


@final
@dataclass(frozen=True)
class _Spectrum:
    """The singular values of the past-to-future operator at one step.

    ``noise`` is the relative rounding error of the singular values. ``parts`` has one entry for each part (tensor) of
    the state: the rank of the operator if this part alone carries the effect of the past.
    """

    values: Tensor
    noise: float
    shorter: int = 0
    """Rank of the operator from three quarters of the past to three quarters of the future."""
    parts: tuple[int, ...] = ()

    def rank(self, tol: float) -> int:
        return int((self.values > max(tol, self.noise) * self.values.max()).sum()) if self.values.max() > 0 else 0

    @property
    def entropy(self) -> float:
        share = self.values / self.values.sum() if self.values.sum() > 0 else self.values
        return float(torch.exp(-torch.special.xlogy(share, share).sum())) if self.values.sum() > 0 else 0.0


def _result(found: Flow, chosen: list[int], rows: list[_Spectrum], tol: float) -> EffectiveStateSize:
    layout, count = found.layout if found.carries else None, len(chosen)
    ranks = np.array([row.rank(tol) for row in rows]).reshape(-1, count)
    parts = np.array([row.parts for row in rows]).reshape(len(rows) // count, count, len(rows[0].parts)).max(0).T
    best = rows[int(ranks.argmax())]
    values = (best.values / (best.values.max() or 1.0)).numpy()
    leaves = layout.leaves if layout is not None else ()
    return EffectiveStateSize(
        size=int(ranks.max()), step=np.array(chosen), by_step=ranks.max(0),
        entropy=np.array([row.entropy for row in rows]).reshape(-1, count).max(0), by_layer=parts,
        layers=tuple(f"part {i}, shape {leaf.shape}" for i, leaf in enumerate(leaves)), singular_values=values,
        tol=max(tol, *(row.noise for row in rows)),
        state_size=sum(math.prod(leaf.shape) for leaf in leaves) if leaves else None,
        complete=best.shorter >= best.rank(tol)
    )  # fmt: skip


def _at(found: Flow, row: int, t: int, tol: float, generator: torch.Generator) -> _Spectrum:
    """Return the singular values of the past-to-future operator of sequence ``row`` at step t.

    The operator is the derivative of the outputs y[t:] with respect to the inputs x[: t + 1]. Singular values up to
    ``tol`` times the largest count as zero.
    """
    x = found.x[row]
    into = _directions(x.shape[1], generator).to(x)
    columns = (t + 1) * len(into)
    dx = torch.zeros(columns + 1, t + 1, x.shape[1]).to(x)
    dx[:columns] = torch.einsum("st,id->sitd", torch.eye(t + 1).to(x), into).reshape(columns, t + 1, -1)
    weights = torch.randn(columns, generator=generator, dtype=torch.float64)
    weights[-len(into) :] = 0.0  # the rounding error of the direct effect of x[t] on y[t] does not matter
    dx[columns] = torch.einsum("c,ctd->td", weights.to(x), dx[:columns])  # a sum, which shows the rounding
    now = x.expand(columns + 1, -1, -1)
    if not found.carries:
        dx = torch.cat([dx, torch.zeros(columns + 1, len(x) - t - 1, x.shape[1]).to(x)], 1)
        dy = found.push(now, dx, None, None, None).dy[:, t:]
        return _spectrum(_operator(dy, generator), weights, tol, _corner(dy, into))
    past = found.push(now[:, : t + 1], dx, None, None, None)
    assert past.dstate is not None
    ahead, none = now[:, t + 1 :], torch.zeros_like(now[:, t + 1 :])

    def future(change: Tensor) -> Tensor:
        return found.push(ahead, none, past.state, change, past.frame).dy

    assert found.layout is not None
    sizes = [leaf.size for leaf in found.layout.leaves]
    parts = []
    masks = torch.eye(len(sizes), dtype=past.dstate.dtype).repeat_interleave(torch.tensor(sizes), 1)
    state = generator.get_state()
    for mask in masks if len(sizes) > 1 else ():
        operator = _operator(_over_complex(found, past.dstate * mask, future), generator)
        generator.set_state(state)
        parts.append(_spectrum(operator, weights, tol).rank(tol))
    if len(found.layout.complex_parts()):
        whole = _spectrum(_operator(_over_complex(found, past.dstate, future), generator), weights, tol)
    else:
        dy = torch.cat([past.dy[:, -1:], future(past.dstate)], 1)
        whole = _spectrum(_operator(dy, generator), weights, tol, _corner(dy, into))
    return replace(whole, parts=tuple(parts) or (whole.rank(tol),))


def _corner(dy: Tensor, into: Tensor) -> tuple[int, int]:
    """Return the number of rows of the operator matrix that belong to y[t], and the number of columns that belong to
    x[t].

    ``dy`` contains the changes of the outputs, and ``into`` the directions in which each input is changed.
    """
    return min(CHANNELS, dy.shape[-1]), len(into)


def _over_complex(found: Flow, change: Tensor, future: Any) -> Tensor:
    """Return the changes of later outputs that the changes ``change`` of the state cause.

    ``future`` is a function that computes the changes of the outputs for a real change of the state. If the state has
    complex numbers, the result is complex and combines the results for real and for imaginary changes.
    """
    assert found.layout is not None
    real = found.layout.complex_parts()
    along = future(change)
    if not len(real):
        return along
    turned = torch.zeros_like(change)
    turned[:, real], turned[:, real + 1] = -change[:, real + 1], change[:, real]
    return torch.complex(along, -future(turned))


def _directions(width: int, generator: torch.Generator) -> Tensor:
    """Return directions (n, width) of the channels: the unit vectors, or random orthonormal vectors if there are more
    than ``CHANNELS`` channels.
    """
    if width <= CHANNELS:
        return torch.eye(width, dtype=torch.float64)
    return torch.linalg.qr(torch.randn(width, CHANNELS, generator=generator, dtype=torch.float64))[0].mT


def _operator(dy: Tensor, generator: torch.Generator) -> Tensor:
    """Return the past-to-future operator as a matrix (steps · channels, columns).

    ``dy`` (columns, steps, channels) contains one change of the outputs per direction in which the past or the state
    was changed. If the outputs have many channels, they are projected on random directions from ``generator``.
    """
    wide = dy.to(torch.complex128 if dy.is_complex() else torch.float64).cpu()
    out = _directions(dy.shape[-1], generator).to(wide.dtype)
    return torch.einsum("csd,od->soc", wide, out).flatten(0, 1)


def _spectrum(operator: Tensor, weights: Tensor, tol: float, corner: tuple[int, int] = (0, 0)) -> _Spectrum:
    """Return the singular values of the past-to-future operator, and its rounding error.

    The last column of ``operator`` was computed as a weighted sum of the other columns, with the given weights. The
    difference between this column and the sum shows the rounding error. ``corner`` is the shape of the block for the
    direct effect of x[t] on y[t], which is not memory and is set to zero. If there is a direct effect (above ``tol``,
    relative to all other effects), an effect of x[t] on later outputs does not count if earlier inputs can have the
    same effect. The rank is then the smallest rank that the operator can have for any values in this block.
    """
    outputs, width = corner
    matrix, combined = operator[:, :-1].clone(), operator[:, -1]
    error = float(torch.linalg.vector_norm(combined - matrix @ weights.to(matrix.dtype)))
    direct = float(torch.linalg.vector_norm(matrix[:outputs, matrix.shape[1] - width :]))
    matrix[:outputs, matrix.shape[1] - width :] = 0.0
    size = float(torch.linalg.vector_norm(matrix))
    noise = max(ROUNDING, 30 * error / size) if size else 0.0
    if direct <= max(tol, noise) * size:
        matrix = matrix[outputs:]
    else:
        before, new = matrix[outputs:].tensor_split([-width], 1)
        fitted = torch.linalg.pinv(before, atol=0.1 * noise * size, rtol=0.0) @ new
        new -= before @ fitted  # with the rounding errors of all effects in this sum
        new[:, new.norm(dim=0) <= noise * size * (1 + fitted.norm(dim=0))] = 0.0
    near, late = math.ceil(WITHIN * len(matrix)), math.ceil(WITHIN * matrix.shape[1])
    values = torch.linalg.svdvals(matrix)
    shorter = torch.linalg.svdvals(matrix[:near, -late:]) > max(tol, noise) * values.max()
    return _Spectrum(values, noise, int(shorter.sum()))

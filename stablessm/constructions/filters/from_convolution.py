"""Construction of recurrent layers that replace long convolution filters, and measurement of their errors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Count, Size, checked
from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array
from stablessm.constructions.filters._fit import Fit, fit
from stablessm.constructions.filters.layer import ChannelGroup, FilterFit, RecurrentConvolution
from stablessm.layers import S4D

SHORT = 32
"""Filters with at most this many taps keep a buffer; so do longer filters whose modes would need as many numbers."""


@final
@dataclass(frozen=True, eq=False)
class _Plan:
    """The representation of one filter: exact first taps, and exponential modes for the later taps.

    ``modes`` is None if all taps are exact; ``reason`` says why, if the tolerance was not met.
    """

    taps: np.ndarray
    modes: Fit | None
    reason: str = ""


@torch.no_grad()
@checked
def from_convolution(
    filters: Any,
    *,
    tol: float = 1e-4,
    max_order: Size = 128,
    head: Count = 1,
    finite: bool = False,
    dtype: torch.dtype = torch.float64,
) -> RecurrentConvolution:
    """Build a recurrent layer that applies long filters in constant memory: y[t] = Σ_k filters[k] x[t-k] per channel.

    Each filter becomes a few exact taps and a sum of exponentials, found by balanced truncation of its Hankel operator
    (the kernel of SSM-UA, eq. 14, without training). The sum is stable and short, although not provably the shortest.
    Since |y - ŷ| ≤ Σ |filter - kernel| · sup |x|, ``tol`` limits the error of an output relative to the largest output
    of the filter.

    Args:
        filters: (channels, length), or (d_out, d_in, length) for y[o] = Σ_i filters[o, i] ∗ x[i]; array or tensor.
        tol: largest allowed Σ |filter - kernel| / Σ |filter| of each filter.
        max_order: highest order of the recurrence of a filter; a real mode counts one, a conjugate pair two. A filter
            that requires more is computed exactly, with a buffer of past inputs as long as the filter. A buffer is also
            used where it takes no more numbers than the modes. Each mode is stored as one complex number. Filters of
            similar order are computed together, and each state is padded to the largest of these orders.
        head: number of first taps that are computed exactly, for direct terms and irregular first taps. Each exact tap
            adds one number to the state.
        finite: whether the filter is zero after its last tap, so that later values of the kernel count as error. By
            default the filter is unknown after its last tap, and the exponentials continue it.
        dtype: dtype of the parameters and the state of the layer, for every dtype of the input. Errors are measured
            with parameters rounded to this dtype. In float32, running the layer adds rounding errors of at least 1e-5
            of the norm of the filter if large modes cancel.

    Returns:
        A module with ``error``, ``orders``, ``failed`` and ``fits`` for each filter.

    >>> t = torch.arange(1000.0)
    >>> layer = from_convolution(torch.stack([(1 + t) ** -1.1, torch.cos(t / 9) * torch.exp(-t / 99)]), tol=1e-4)
    >>> layer.orders.tolist(), bool((layer.error <= 1e-4).all()), layer.failed
    ([9, 2], True, ())
    >>> y, state = layer(torch.randn(8, 5000, 2))
    """
    values = _checked(filters)
    max_order, head = whole_number("max_order", max_order, 1), whole_number("head", head, 0)
    tol = real_number("tol", tol, 0, 1)
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError("dtype", "torch.float32 or torch.float64", dtype)
    flat = values.reshape(-1, values.shape[-1])
    name = str(dtype).removeprefix("torch.")
    plans = _cheapest([_plan(row, tol, max_order, head, finite, name) for row in flat], flat, values.shape[-2])
    layer = _build(plans, values.shape[:-1], flat, finite, dtype)
    late = [i for i, made in enumerate(layer.fits) if not made.relative_error <= tol]
    if late:  # these filters exceed the tolerance because of rounding to dtype
        for i in late:
            plans[i] = _Plan(flat[i], None, f"relative error {layer.fits[i].relative_error:.1e} in {name}")
        layer = _build(plans, values.shape[:-1], flat, finite, dtype)
    return layer


def _checked(filters: Any) -> np.ndarray:
    values = real_array("filters", filters)
    if values.ndim not in (2, 3) or not values.size:
        raise ArgumentError("filters", "shape (channels, length) or (d_out, d_in, length)", f"shape {values.shape}")
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ArgumentError("filters", "finite numbers", f"{values[place]} at {place}")
    return values


def _used(row: np.ndarray) -> np.ndarray:
    """Return a filter (L,) without the zeros at its end."""
    return row[: len(row) - int(np.argmax(row[::-1] != 0))] if row.any() else row[:0]


def _plan(row: np.ndarray, tol: float, max_order: int, head: int, finite: bool, dtype: str) -> _Plan:
    used = _used(row)
    if len(used) <= max(SHORT, head + 1):
        return _Plan(used, None)
    scale, goal = float(np.abs(row).sum()), 0.9 * tol  # the rest of tol is reserved for rounding
    found = fit(row[head:] / scale, goal, min(max_order, len(used) - head - 1), finite, dtype)
    if found.error > goal:
        return _Plan(used, None, f"relative error {found.error:.1e} at order {found.order}")
    found = Fit(found.rates, found.weights * scale, found.order, found.error * scale)
    return _Plan(row[:head], found if found.order else None)


def _cheapest(plans: list[_Plan], flat: np.ndarray, d_input: int) -> list[_Plan]:
    """Replace the modes of filters by a buffer where the buffer is not larger than the modes; return the new plans.

    ``flat`` (filters, length) contains the filters. All filters of an input channel are replaced together or not at
    all, because they can share one buffer of past inputs.
    """
    plans = list(plans)
    for source in range(d_input):
        rows = range(source, len(plans), d_input)
        fitted = [i for i in rows if plans[i].modes is not None]
        modes = sum(2 * len(made.rates) for i in fitted if (made := plans[i].modes) is not None)
        taps = max(len(plans[i].taps) for i in rows)  # the exact taps need this buffer anyway
        if fitted and max(len(_used(flat[i])) for i in fitted) <= taps + modes:
            for i in fitted:
                plans[i] = _Plan(_used(flat[i]), None)
    return plans


def _build(
    plans: list[_Plan], shape: tuple[int, ...], flat: np.ndarray, finite: bool, dtype: torch.dtype
) -> RecurrentConvolution:
    """Build the recurrent layer from the plans of all filters, and measure the error of each filter.

    ``shape`` is the shape of the array of filters without its last axis, and ``flat`` contains the filters in rows.
    With ``finite``, the filters are zero after their last tap.

    Filters with states of similar size are computed together, as one :class:`ChannelGroup`.
    """
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, plan in enumerate(plans):
        modes = 0 if plan.modes is None else len(plan.modes.rates)
        members[modes.bit_length(), len(plan.taps).bit_length()].append(i)
    groups = [_group(plans, rows, shape[-1], dtype) for _, rows in sorted(members.items())]
    fits: dict[int, FilterFit] = {}
    for group in groups:
        fits |= _measure(group, plans, flat, finite)
    return RecurrentConvolution(groups, shape, tuple(fits[i] for i in range(len(flat))))


def _group(plans: list[_Plan], rows: list[int], d_input: int, dtype: torch.dtype) -> ChannelGroup:
    filters = torch.tensor(rows)
    most = max(len(plans[i].taps) for i in rows)
    padded = np.stack([np.pad(plans[i].taps, (0, most - len(plans[i].taps))) for i in rows])
    taps = torch.from_numpy(padded).to(dtype)
    fits = [plans[i].modes for i in rows]
    size = max(0 if made is None else len(made.rates) for made in fits)
    if not size:
        return ChannelGroup(filters, filters % d_input, taps, None)
    rates = torch.full((len(rows), size), -1.0, dtype=torch.complex128)  # a mode of weight zero fills a shorter sum
    weights = torch.zeros_like(rates)
    for i, made in enumerate(fits):
        assert made is not None
        rates[i, : len(made.rates)] = torch.from_numpy(made.rates)
        weights[i, : len(made.rates)] = torch.from_numpy(made.weights) / 2  # an S4D mode stands for 2 Re
    with torch.random.fork_rng(devices=[]):  # the layer draws weights, which are then replaced
        modes = S4D(len(rows), size, discretization="exponential", eigenvalues=rates, dt_min=1.0, dt_max=1.0)
    modes = modes.to(dtype)
    modes.w.copy_(modes.map.inverse(rates.real))  # S4D has computed w in its default dtype
    modes.frequency.copy_(rates.imag)
    modes.C.copy_(torch.view_as_real(weights))
    modes.D.zero_()
    return ChannelGroup(filters, filters % d_input, taps, modes)


def _measure(group: ChannelGroup, plans: list[_Plan], flat: np.ndarray, finite: bool) -> dict[int, FilterFit]:
    """Measure the errors of all filters of a group, with parameters rounded to the dtype of the layer.

    ``plans`` and ``flat`` contain the plans and the values of all filters, also of other groups. With ``finite``, the
    filters are zero after their last tap, and later outputs of the group count as error.
    """
    length = flat.shape[1]
    span = 2 * length if finite else length
    kernel = group.kernel(span).numpy()
    tails = group.tail(span).numpy() if finite else np.zeros(len(kernel))
    fits = {}
    for row, found, tail in zip(group.filters.tolist(), kernel, tails.tolist(), strict=True):
        plan, scale = plans[row], float(np.abs(flat[row]).sum())
        error = np.abs(found - np.pad(flat[row], (0, span - length)))
        l1 = float(error.sum()) + tail
        fits[row] = FilterFit(
            order=0 if plan.modes is None else plan.modes.order,
            taps=len(plan.taps),
            sup_error=max(float(error.max()), tail),
            l1_error=l1,
            relative_error=l1 / scale if scale else 0.0,
            reason=plan.reason,
        )
    return fits

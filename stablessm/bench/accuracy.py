"""Measures errors of the scan over long sequences, and checks whether two runs give bitwise identical results.

The scan is h[t] = a[t] h[t-1] + x[t] with decays |a| = 1 - 1e-6. With a decay so close to 1, a rounding error stays in
the state for the whole sequence. An error is the largest difference from the true values, divided by the largest true
value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stablessm.bench import table
from stablessm.bench.options import Options
from stablessm.bench.suite import Axes, Row, run_cases
from stablessm.scan import linear_scan

STEPS = [(10_000,), (100_000,), (1_000_000,)]
SMOKE = [(100,)]
DTYPES = ["float32", "complex64"]
DECAYS = ("step", "channel")
CHANNELS = 8
MODULUS = 1 - 1e-6
GRADIENTS_UP_TO = 100_000
BLOCK = 10_000
"""Number of steps per call of the reference, which stores one tensor per step."""


def run(options: Options) -> None:
    """Measure the errors of all cases, print a table, and update the record after every case."""
    lengths = [size[0] for size in options.pick_sizes(SMOKE if options.smoke else STEPS, "STEPS")]
    dtypes = options.pick_dtypes(DTYPES, DTYPES)
    axes: Axes = {"steps": lengths, "dtype": dtypes, "decay": DECAYS}
    run_cases("accuracy", options, axes, partial(one_case, device=options.device), show, summarize)


def one_case(steps: int, dtype: str, decay: str, device: str) -> list[Row]:
    """Measure the errors of the states of one case and, if the sequence is not too long for the reference, the errors
    of the gradients. There is one decay for each channel (``decay="channel"``) or for each step and channel
    (``"step"``).
    """
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    a = torch.full((1, steps, CHANNELS) if decay == "step" else (CHANNELS,), MODULUS, dtype=torch.float64)
    if kind.is_complex:
        a = a * torch.exp(2j * math.pi * torch.rand(a.shape, dtype=torch.float64))
    a, x, g = a.to(kind), *(torch.randn(1, steps, CHANNELS, dtype=kind) for _ in range(2))
    with_gradients = steps <= GRADIENTS_UP_TO
    ours, again = (_ours(a, x, g, device, with_gradients) for _ in range(2))
    exact = _reference(a, x, g, with_gradients)
    return [
        {
            "what": what,
            "relative_error": relative_error(ours[what], exact[what]),
            "same_bits": torch.equal(ours[what], again[what]),
        }
        for what in exact
    ]


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference between two arrays, divided by the largest absolute value of ``exact``.

    >>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0], dtype=torch.float64))
    0.5
    """
    return ((ours.cpu().to(exact.dtype) - exact).abs().max() / exact.abs().max()).item()


def show(rows: list[Row]) -> str:
    """Format the errors as a table with one line per length, dtype and quantity (states or gradients)."""
    lines = [
        [f"{row['steps']:,} steps, {row['dtype']}, decay per {row['decay']}: {row['what']}",
         f"{row['relative_error']:.1e}", "the same" if row["same_bits"] else "different"]
        for row in rows
    ]  # fmt: skip
    return table.columns(["relative error against float64", "error", "bits of two runs"], lines)


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the largest error of the states, the largest error of the gradients, and whether all results were bitwise
    repeatable.
    """
    values = [row["relative_error"] for row in rows if row["what"] == "states"]
    gradients = [row["relative_error"] for row in rows if row["what"] != "states"]
    found = {"worst_error_of_states": max(values), "same_bits": all(row["same_bits"] for row in rows)}
    return found | ({"worst_error_of_gradients": max(gradients)} if gradients else {})


def _ours(a: Tensor, x: Tensor, g: Tensor, device: str, gradients: bool) -> dict[str, Tensor]:
    a, x = (tensor.to(device).requires_grad_(gradients) for tensor in (a, x))
    return _parts(linear_scan(a, x), a, x, g.to(device))


def _reference(a: Tensor, x: Tensor, g: Tensor, gradients: bool) -> dict[str, Tensor]:
    wide = torch.complex128 if x.is_complex() else torch.float64
    a, x = (tensor.to(wide).requires_grad_(gradients) for tensor in (a, x))
    states, last = [], None
    for start in range(0, x.shape[1], BLOCK):
        decay = a if a.dim() == 1 else a[:, start : start + BLOCK]
        states.append(linear_scan(decay, x[:, start : start + BLOCK], last, backend="reference"))
        last = states[-1][:, -1]
    return _parts(torch.cat(states, 1), a, x, g.to(wide))


def _parts(states: Tensor, a: Tensor, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    if not states.requires_grad:
        return {"states": states}
    names = ("gradient of the decay", "gradient of the drive")
    return {"states": states.detach()} | dict(zip(names, torch.autograd.grad(states, (a, x), g), strict=True))

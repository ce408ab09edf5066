"""Conversion of a model to float64, because a slow decay soon falls below the rounding errors of float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.systems import System

MOST_WEIGHTS = 2**26
"""Largest number of weights of a model that is copied."""


def in_double(system: System, run_by: Callable[[Any], System]) -> System:
    """Return a system that runs a float64 copy of the model.

    Returns the given system if the model cannot be copied, is too large, or does not compute in float64 throughout.
    ``run_by`` creates the system from the copy.

    >>> from stablessm.instruments.systems import as_system
    >>> in_double(as_system(nn.GRU(2, 3)), as_system).dtype
    torch.float64
    """
    model = system.model if system.dtype == torch.float64 else doubled(system.model)
    if model is system.model:
        return system
    try:
        copied = run_by(model)
        precise = _is_precise(copied)
    except Exception:  # whatever it raised, it does not run in float64
        return system
    copied.model.eval()
    return copied if precise else system


def doubled(model: Any) -> Any:
    """Return a float64 copy of a module, or the model itself if it is too large or cannot be copied."""
    if not isinstance(model, nn.Module) or sum(weight.numel() for weight in model.parameters()) > MOST_WEIGHTS:
        return model
    try:
        return copy.deepcopy(model).double()
    except Exception:  # whatever it raised, it cannot be copied
        return model


def _is_precise(system: System) -> bool:
    """Return True if outputs respond to a relative input change of 1e-9, which rounding to float32 prevents."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 12, system.d_input, generator=generator, dtype=torch.float64).to(system.device)
    with evaluating(system.model), torch.no_grad():
        y, _ = system.call(torch.cat([x, x * (1 + 1e-9), x * (1 + 2e-9)]), None)
    change, bend = y[2] - y[0], y[0] - 2 * y[1] + y[2]
    return y.dtype == torch.float64 and bool(bend.abs().max() < 1e-3 * change.abs().max())

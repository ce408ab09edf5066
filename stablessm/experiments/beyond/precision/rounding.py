"""The stages of ``ext-precision``. They round the recurrent weights of models that compute sums of exponentials, and
measure the effect.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from stablessm import reparam
from stablessm._typing import Time
from stablessm.experiments.frame import Run, kept, stage
from stablessm.experiments.iat.exponential_sums import TARGETS, fitted_layer, longest_time
from stablessm.instruments import MemoryCurve, PerturbationCurve, memory_function, perturbation_error
from stablessm.layers import RealSSM
from stablessm.layers.initialize import timescales

FLOATS = ("float32", "float16", "bfloat16")
ALL_FLOATS = ("float64", *FLOATS)
FORMATS = (*FLOATS, "int8")
STABLE = ("exp", "softplus", "best")
MAPS = ("direct", *STABLE)
CURVES = ("direct", "exp", "best")
"""Maps for which E(β) and memory functions are measured in every format; softplus behaves like exp."""
TIMES: tuple[Time, ...] = get_args(Time)


@dataclass(frozen=True)
class PrecisionConfig:
    """Settings of ``ext-precision``: model sizes, radii of the perturbations, options of the searches for the worst
    perturbation, and thresholds of the claims.
    """

    widths: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    horizon: int = 10_000
    draws: int = 10
    """Number of random perturbations whose size equals the rounding error."""
    scales: int = 2000
    longest: float = 1e9
    """The longest time scale of the single modes."""
    width: int = 32
    """Width of the model whose E(β) and memory function are measured in several formats."""
    steps: int = 1000
    """Horizon of E(β) and of the memory function, in steps."""
    radii: tuple[float, ...] = (0.0, *(10.0**k for k in np.arange(-8, 0.1, 0.5).tolist()))
    samples: int = 5
    climb: int = 20
    seed: int = 0
    works: float = 0.05
    """Largest change of a kernel, relative to its L¹ norm, with which a model counts as working."""
    agrees: float = 0.01
    """Two curves count as equal if their relative difference is below this value."""
    alike: float = 10.0
    """The effects of rounding and of a random perturbation count as equal within this factor."""


def rounded(w: Tensor, format: str) -> Tensor:
    """Round the weights to a number format, such as ``bfloat16`` or ``int8``, and return them in their original
    dtype.
    """
    if format == "int8":
        scale = w.abs().max() / 127
        return (w / scale).round() * scale
    return w.to(getattr(torch, format)).to(w.dtype)


def model(width: int, horizon: int, map: str, time: Time) -> RealSSM:
    """Return a float64 model with ``width`` states. Its kernel, a sum of exponentials, is fitted to the polynomial
    memory of figure 1 of IAT over ``horizon`` steps.
    """
    return fitted_layer(TARGETS["polynomial"], width, longest_time("polynomial", width), horizon, map, time)


@stage("modes-{time}-{map}", over=lambda config: product(TIMES, MAPS))
def single_modes(config: PrecisionConfig, run: Run, time: Time, map: str) -> Mapping[str, Tensor]:
    """Round the weights of single modes. Return the time scales of the modes (``scale``) and, for each number format,
    the relative change of each time scale by rounding. The change is infinite if the rounded mode is unstable.
    """
    f, scale = reparam.get(map, time), timescales(config.scales, 1.0, config.longest)
    w = f.inverse(-1 / scale if time == "continuous" else torch.exp(-1 / scale))
    arrays = {"scale": scale}
    for format in FLOATS:
        distance = f.distance(rounded(w, format))
        arrays[format] = torch.where(distance > 0, (f.distance(w) / distance - 1).abs(), torch.inf)
    return arrays


@stage("models-{time}-{map}", over=lambda config: product(TIMES, MAPS))
def whole_models(config: PrecisionConfig, run: Run, time: Time, map: str) -> Mapping[str, Any]:
    """Round all recurrent weights of models of several widths. Return the numbers of :func:`one_model`, each as an
    array (widths, formats).
    """
    rows = [one_model(config, model(width, config.horizon, map, time)) for width in config.widths]
    return {name: [row[name] for row in rows] for name in rows[0]}


@torch.no_grad()
def one_model(config: PrecisionConfig, layer: RealSSM) -> dict[str, list[float]]:
    """Measure how rounding the recurrent weights changes one model.

    Return for each number format: the size β of the rounding error (``beta``), the number of modes that become unstable
    (``lost``), and three changes of the kernel, relative to its L¹ norm: the change by rounding (``change``), the
    largest change by random perturbations of size β (``random``), and the theoretical bound on the change by any
    perturbation of size β (``bound``).
    """
    compare = partial(perturbation_error, target=layer, parameters="recurrent", horizon=config.horizon, progress=False)
    size = float(layer.kernel(torch.arange(config.horizon, dtype=torch.float64)).abs().sum())
    found: dict[str, list[float]] = {name: [] for name in ("beta", "lost", "change", "random", "bound")}
    for format in FORMATS:
        twin = copy.deepcopy(layer)
        twin.w.copy_(rounded(layer.w, format))
        beta = float((twin.w - layer.w).norm())
        curve = compare(layer, radii=[beta], samples=config.draws, seed=config.seed)
        bound = np.inf if curve.upper is None else curve.upper[0]
        lost = int((layer.map.distance(twin.w) <= 0).sum())
        change = compare(twin, radii=[0.0], samples=1).lower[0]
        for name, value in zip(found, (beta, lost, change / size, curve.lower[0] / size, bound / size), strict=True):
            found[name].append(float(value))
    return found


@kept(PerturbationCurve, "curve-{time}-{map}-{format}", over=lambda config: product(TIMES, CURVES, ALL_FLOATS))
def measured(config: PrecisionConfig, run: Run, time: Time, map: str, format: str) -> PerturbationCurve:
    """Measure the perturbation error E(β) of a model in a floating-point format. The target is the same model in
    float64.
    """
    layer = model(config.width, config.steps, map, time)
    return perturbation_error(
        copy.deepcopy(layer).to(getattr(torch, format)), layer, config.radii, parameters="recurrent", search="ascent",
        samples=config.samples, steps=config.climb, horizon=config.steps, seed=config.seed, progress=False,
    )  # fmt: skip


@kept(MemoryCurve, "memory-{time}-{map}-{format}", over=lambda config: product(TIMES, CURVES, ALL_FLOATS))
def memory(config: PrecisionConfig, run: Run, time: Time, map: str, format: str) -> MemoryCurve:
    """Return the memory function of the model, measured in a floating-point format."""
    layer = model(config.width, config.steps, map, time).to(getattr(torch, format))
    return memory_function(layer, config.steps, progress=False)

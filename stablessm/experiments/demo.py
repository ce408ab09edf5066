"""The stability demonstration: one target with a long memory, two maps, the same start, what is left after noise.

The target is the linear functional with the polynomial memory ρ(t) = (1 + t)^(-1.1) of paper 004 (section 4.1). A
``direct`` and a ``best`` layer start from the same eigenvalues and train alike; then their recurrent weights are
perturbed, which only one of them survives (theorems 3.1 and 3.3).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stablessm.layers import RealSSM, param_groups
from stablessm.layers.initialise import timescales
from stablessm.scan import causal_convolution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DemoConfig:
    """Sizes; the defaults take about a minute on two cores."""

    maps: tuple[str, ...] = ("direct", "best")
    exponent: float = 1.1
    width: int = 64
    length: int = 200
    """Steps of a training sequence; errors are measured over ten times as many."""
    batch: int = 128
    steps: int = 2000
    lr: float = 0.01
    clip: float = 0.5
    radii: tuple[float, ...] = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)
    """How far weights are perturbed, in the largest entry."""
    draws: int = 30
    seed: int = 0


@dataclass(frozen=True)
class DemoResult:
    """What one map came to."""

    map: str
    losses: list[float]
    kernel: Tensor
    eigenvalues: Tensor
    errors: dict[float, float]
    """Radius → the largest error found, as ∫|ρ - ρ̂| / ∫|ρ| (a lower bound of the supremum)."""
    radius: float
    """The smallest change of a recurrent weight that makes the recurrence unstable."""
    seconds: float


def target_kernel(config: DemoConfig) -> Tensor:
    """ρ on ten times the training length, in float64."""
    return (1 + torch.arange(10 * config.length, dtype=torch.float64)) ** -config.exponent


def train(map: str, config: DemoConfig) -> tuple[RealSSM, list[float]]:
    """One layer, trained on white noise; the loss is relative to the power of the target."""
    from tqdm import trange

    torch.manual_seed(config.seed)
    start = -1 / timescales(config.width, 1.0, config.length)
    layer = RealSSM(1, config.width, 1, map=map, discretisation="exponential", bias=False, eigenvalues=start)
    optimiser = torch.optim.Adam(param_groups(layer, config.lr))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    kernel = target_kernel(config)[: config.length, None].float()
    losses = []
    for _ in (bar := trange(config.steps, desc=f"training {map:>6}", unit="step", disable=None)):
        x = torch.randn(config.batch, config.length, 1)
        y = causal_convolution(x, kernel)
        loss = (layer(x)[0] - y).square().mean() / y.square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), config.clip)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.1e}")
    return layer, losses


@torch.no_grad()
def perturbed_error(layer: RealSSM, radius: float, config: DemoConfig) -> float:
    """The largest ∫|ρ - ρ̂| / ∫|ρ| over random perturbations of the recurrent weights by ``radius``."""
    rho, times = target_kernel(config), torch.arange(10 * config.length, dtype=torch.float64)
    generator = torch.Generator().manual_seed(config.seed)
    weights, worst = layer.w.double(), 0.0
    modes = (layer.C[0] * layer.B[:, 0]).double()
    for _ in range(config.draws if radius else 1):
        noise = 2 * torch.rand(weights.shape, generator=generator, dtype=torch.float64) - 1
        eigenvalues = layer.map(weights + radius * noise / noise.abs().max())
        kernel = (modes * torch.exp(eigenvalues * times[:, None])).sum(1)
        worst = max(worst, ((kernel - rho).abs().sum() / rho.sum()).item())
    return worst


def stability_radius(layer: RealSSM) -> float:
    """How far a weight of a ``direct`` layer is from λ = 0; a stable map never gets there."""
    return math.inf if layer.map.is_stable else max(0.0, -layer.eigenvalues().max().item())


def run(config: DemoConfig) -> list[DemoResult]:
    """Train and measure every map of the config."""
    results = []
    for map in config.maps:
        start = time.perf_counter()
        layer, losses = train(map, config)
        times = torch.arange(10 * config.length, dtype=torch.float32)
        results.append(
            DemoResult(
                map=map,
                losses=losses,
                kernel=layer.kernel(times)[:, 0, 0].detach(),
                eigenvalues=layer.eigenvalues().detach(),
                errors={radius: perturbed_error(layer, radius, config) for radius in config.radii},
                radius=stability_radius(layer),
                seconds=time.perf_counter() - start,
            )
        )
    return results


def figure(results: list[DemoResult], config: DemoConfig) -> Figure:
    """Kernel, eigenvalues, and error under perturbation, side by side."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(13, 3.8), layout="constrained")
    memory, spectrum, noise = plot.subplots(1, 3)
    rho = target_kernel(config)
    memory.loglog(1 + torch.arange(len(rho)), rho, "k", lw=3, alpha=0.3, label="target $(1+t)^{-1.1}$")
    for row, (result, colour) in enumerate(zip(results, ("C3", "C0"), strict=False)):
        memory.loglog(1 + torch.arange(len(rho)), result.kernel.abs(), colour, label=result.map)
        lam = result.eigenvalues
        for sign, filled in ((-1, True), (1, False)):
            rates = lam[lam.sign() == sign].abs()
            kind = {"facecolors": colour if filled else "none", "edgecolors": colour}
            spectrum.scatter(rates, [row] * len(rates), label=None if filled else f"{result.map}: λ > 0", **kind)
        noise.loglog([max(r, config.radii[1] / 10) for r in result.errors], list(result.errors.values()), f"{colour}o-")
    memory.axvline(config.length, color="k", ls=":", lw=1)
    memory.set(title="what the model remembers", xlabel="1 + t  (trained left of the line)", ylim=(1e-5, 2))
    memory.legend()
    spectrum.set(title="decay rates |λ| after training", xscale="log", xlabel="|λ|  (open: unstable)", ylim=(-0.5, 1.5))
    spectrum.set_yticks(range(len(results)), [result.map for result in results])
    noise.set(title="error after perturbing the weights", xlabel="β  (leftmost: 0)", ylim=(5e-2, 1e6))
    noise.set_ylabel("∫|ρ-ρ̂| / ∫|ρ|  (cut at 10⁶)")
    return plot

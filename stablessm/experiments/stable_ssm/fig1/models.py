"""Trains state-space models on a target with polynomial memory, and measures their perturbation errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.experiments.frame import Run, Stages, kept
from stablessm.experiments.frame.training import Batch, Training, noise, restored, train
from stablessm.instruments import PerturbationCurve, PerturbationFamily
from stablessm.layers import S4D, RealSSM
from stablessm.layers.initialize import timescales
from stablessm.targets import LinearFunctional

TARGET = LinearFunctional("polynomial", exponent=1.1)
SEARCHES: dict[str, tuple[Literal["random", "ascent"], Literal["tensor_max", "entry_max"]]] = {
    "draws": ("random", "tensor_max"),
    "ascent": ("ascent", "tensor_max"),
    "draws-released": ("random", "entry_max"),
}
"""Searches: random perturbations of 2-norm β, as in the text; gradient ascent; random perturbations as in the
authors' code."""
OWN = "s4d"
"""The name under which S4D, with its own map and complex eigenvalues, is listed among the maps."""
PUBLISHED = Training(samples=153_600, batch=512, epochs=40, graphed=True)


@dataclass(frozen=True)
class Config:
    """Settings of ``st-fig1``: maps, widths, lengths, training and perturbations. Defaults are as in StableSSM,
    appendix C.1, with some additions.
    """

    maps: tuple[str, ...] = ("direct", "softplus", "exp", "best")
    widths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    """The authors' widths 8 to 64, and two narrower ones, because 8 modes already fit 100 steps well."""
    length: int = 100
    longer: tuple[int, ...] = (1000,)
    """A longer length, trained on the expectation of the loss instead of samples."""
    training: Training = PUBLISHED
    seeds: int = 4
    radii: tuple[float, ...] = (0.0, *(1e-3 * 2.0 ** (k / 2) for k in range(21)))
    draws: int = 30
    steps: int = 20
    """Number of steps of gradient ascent."""
    bounded: float = 10.0
    """An error above this multiple of the target's norm counts as an explosion."""
    larger: float = 10.0
    """Factor by which the error of the direct map must exceed the error of stable maps at β = 0.032."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return all sequence lengths, in steps."""
        return (self.length, *self.longer)


def s4d_start(width: int, length: int, seed: int) -> S4D:
    """Return an untrained S4D layer of one channel with complex eigenvalues (initialization S4D-Lin) and the map exp,
    S4D's own map. The time scale of all its modes is half the length of the sequence.
    """
    torch.manual_seed(seed)
    return S4D(1, width, map="exp", init="lin", dt_min=4 / length, dt_max=4 / length).double()


def start(width: int, length: int, seed: int) -> RealSSM:
    """Return an untrained model with the map ``direct``. The time scales of its modes range from one step to the length
    of the sequence. Models with other maps are made from this model; they keep its eigenvalues and its weights B and C.
    """
    torch.manual_seed(seed)
    rates = -1 / timescales(width, 1.0, float(length))
    return RealSSM(1, width, 1, map="direct", discretization="exponential", bias=False, eigenvalues=rates).double()


def gram(x: Tensor) -> Tensor:
    """Return the matrix G (T, T) with e'Ge = mean of (Σ_j e_j x[t-j])² for every vector e (T,). The mean is over the
    steps t and a batch of inputs x (B, T).

    >>> x, e = torch.randn(3, 4), torch.randn(4)
    >>> windows = [x[:, : t + 1].flip(1) @ e[: t + 1] for t in range(4)]
    >>> bool((torch.stack(windows).square().mean() - e @ gram(x) @ e).abs() < 1e-5)
    True
    """
    windows = F.pad(x, (x.shape[1] - 1, 0)).unfold(1, x.shape[1], 1).flip(-1).reshape(-1, x.shape[1])
    return windows.mT @ windows / len(windows)


def kernel_loss(layer: RealSSM | S4D, weights: Tensor, rho: Tensor, times: Tensor) -> Tensor:
    """Return the mean square error of the layer's output, computed from the error e of the layer's kernel at the given
    times; ``rho`` is the correct kernel. The result is e'Ge if ``weights`` is a matrix G (see :func:`gram`), and Σ g e²
    if ``weights`` is a vector g, the diagonal of such a matrix.
    """
    error = layer.kernel(times).flatten(1)[:, 0] - rho
    return error @ (weights @ error) if weights.dim() == 2 else (weights * error.square()).sum()


def _starts(config: Config, map: str, length: int) -> list[Any]:
    cells = [(m, seed) for m in config.widths for seed in range(config.seeds)]
    if map == OWN:
        return [s4d_start(m, length, seed) for m, seed in cells]
    return [start(m, length, seed).with_map(map) for m, seed in cells]


def train_models(config: Config, run: Run, map: str, length: int) -> None:
    """Train the models of all widths and seeds, with one map, on sequences of one length."""
    device = config.training.chosen_device()
    times = torch.arange(length, dtype=torch.float64, device=device)
    rho = TARGET.kernel(times)[:, 0, 0]

    @cache
    def batch(k: int) -> Batch:
        if length != config.length:
            return 1 - times / length, rho, times
        return gram(noise(0, k, config.training.batch, length).to(device)), rho, times

    train(run, f"training-{map}-{length}", _starts(config, map, length), kernel_loss, batch, config.training)


def trained(config: Config, stages: Stages, map: str, length: int) -> list[Any]:
    """Return for each width one trained model: of the models of all seeds, the model with the smallest final loss."""
    arrays = stages[f"training-{map}-{length}"]
    models = restored(_starts(config, map, length), arrays)
    best = arrays["losses"][-1].reshape(-1, config.seeds).argmin(1)
    return [models[i * config.seeds + seed] for i, seed in enumerate(best)]


@lru_cache(maxsize=1)
def _measured(config: Config, run: Run, map: str, length: int, kind: str) -> PerturbationFamily:
    """Measure the perturbation errors of the trained models of all widths together, so that the numbers do not depend
    on the order in which the stages are computed. ``kind`` is a key of ``SEARCHES``, the searches for the worst
    perturbation.
    """
    (search, weight_norm), device = SEARCHES[kind], config.training.chosen_device()
    models = dict(zip(config.widths, (m.to(device) for m in trained(config, run, map, length)), strict=True))
    return PerturbationFamily.of(
        models, TARGET, config.radii, norm="kernel_l1", parameters="recurrent", weight_norm=weight_norm,
        search=search, samples=config.draws, steps=config.steps, horizon=length, progress=False,
    )  # fmt: skip


@kept(PerturbationCurve, "{map}-{length}-{width}-{kind}")
def curve(config: Config, run: Run, map: str, length: int, width: int, kind: str) -> PerturbationCurve:
    """Return the perturbation errors E_m(β) of the trained model of width m: the largest error after a perturbation of
    size β of its recurrent weights. ``kind`` is a key of ``SEARCHES``, the searches for the worst perturbation.
    """
    return _measured(config, run, map, length, kind).curves[width]


def family(config: Config, stages: Stages, map: str, length: int, kind: str) -> PerturbationFamily:
    """Return the stored perturbation errors of the trained models of all widths as a :class:`PerturbationFamily`.
    ``kind`` is a key of ``SEARCHES``, the searches for the worst perturbation.
    """
    return PerturbationFamily({m: curve(stages, map, length, m, kind) for m in config.widths})

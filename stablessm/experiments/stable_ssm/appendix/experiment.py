"""Checks statements in the appendix of StableSSM by computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm import reparam
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.layers import RealSSM
from stablessm.report.figure import Figure, Panel

MAPS = ("direct", "exp", "softplus", "best")


@dataclass(frozen=True)
class AppendixConfig:
    """Settings of ``st-appendix``: lengths, learning rates, and thresholds of the claims. The paper gives no values."""

    lengths: tuple[int, ...] = (4, 8, 12, 16, 20, 24)
    modes: int = 60
    floors: tuple[float, ...] = (0.3, 0.001)
    """The smallest rate β₀ of the modes, and the smallest rate of the control."""
    tolerance: float = 0.1
    """Relative error with which the exponential sum fits the memory function."""
    starts: tuple[float, ...] = (20.0, 200.0, 2000.0, 20000.0)
    """Initial time scales τ₀ of gradient descent; the time scale of the target is 10."""
    target: float = 10.0
    rates: int = 121
    steps: int = 30_000
    simple: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0)
    """Learning rates η of gradient descent on x⁴ and x²."""
    epsilons: tuple[float, ...] = (0.1, 0.01, 0.001)
    straight: float = 0.98
    """A line counts as straight if R² is at least this value."""
    flat: float = 10.0
    """Values that differ by at most this factor count as equally large."""
    steep: float = 100.0
    """Values that differ by at least this factor count as not equally large."""
    exact: float = 1e-12
    near: float = 0.1


@stage("weights-{floor:g}", over=lambda config: config.floors)
def weights(config: AppendixConfig, run: Run, floor: float) -> Mapping[str, np.ndarray]:
    """Fit exponential sums Σ aᵢ e^(-λᵢt) to a power law over several lengths. Return for each length the smallest
    possible sum of absolute weights Σ|aᵢ| of such a fit (StableSSM, remark B.2). ``floor`` is the smallest rate λᵢ.
    """
    from scipy.optimize import linprog

    rates = np.geomspace(floor, 30.0, config.modes)
    found = []
    for length in config.lengths:
        t = np.arange(length + 1.0)
        modes, goal = np.exp(-rates * t[:, None]), (t + 1) ** -1.1
        scale = np.exp(rates[0] * t) / goal  # rows of the size of one
        both = np.hstack([modes, -modes]) * scale[:, None]
        limits = np.concatenate([(1 + config.tolerance) * goal * scale, -(1 - config.tolerance) * goal * scale])
        solved = linprog(np.ones(2 * config.modes), np.vstack([both, -both]), limits, bounds=(0, None), method="highs")
        found.append(float(solved.fun) if solved.status == 0 else np.nan)
    return {"sizes": np.array(found)}


@stage("descent")
def descent(config: AppendixConfig, run: Run) -> Mapping[str, np.ndarray]:
    """Run gradient descent on x⁴ and on x². Return the final |x| for each learning rate; infinity stands for |x| above
    1e100.
    """
    rate = np.array(config.simple)
    fourth, square = 1 / (2 * rate) + 1, np.full(len(rate), 10.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(config.steps):
            fourth = np.where(np.abs(fourth) < 1e100, fourth - rate * 4 * fourth**3, np.inf)
            square = square - rate * 2 * square
    return {"fourth": np.abs(fourth), "square": np.nan_to_num(np.abs(square), nan=np.inf)}


def mode_error(eigenvalue: Tensor, target: float) -> Tensor:
    """Return the error of one mode with the eigenvalue λ that should have the time scale ``target``: ½∫(e^(λt) -
    e^(-t/target))² dt. Return NaN for λ ≥ 0.

    >>> float(mode_error(torch.tensor(-0.1, dtype=torch.float64), 10.0))
    0.0
    """
    goal = -1 / target
    value = 0.5 * (-0.5 / eigenvalue + 2 / (eigenvalue + goal) - 0.5 / goal)
    return torch.where(eigenvalue < 0, value, torch.nan)


@stage("rates-{map}", over=lambda config: MAPS)
def largest_rates(config: AppendixConfig, run: Run, map: str) -> Mapping[str, np.ndarray]:
    """Train one mode by gradient descent, starting from several time scales. Return for each initial time scale the
    largest learning rate with which training converges, or NaN if training converges with no learning rate.
    """
    f, rate = reparam.get(map), torch.logspace(-12, 3, config.rates, dtype=torch.float64)
    w = f.weights(-1 / torch.tensor(config.starts, dtype=torch.float64))[:, None].repeat(1, config.rates)
    for _ in range(config.steps):
        w.requires_grad_()
        (slope,) = torch.autograd.grad(mode_error(f(w), config.target).sum(), w)
        w = (w - rate * slope).detach()
    zero = mode_error(torch.tensor(-1e9, dtype=torch.float64), config.target)
    good = mode_error(f(w), config.target) < 0.01 * zero
    best = torch.where(good, rate, -torch.inf).amax(1)
    return {"largest": torch.where(best > 0, best, torch.nan).numpy()}


@stage("mlp")
def mlp(config: AppendixConfig, run: Run) -> Mapping[str, np.ndarray]:
    """Compute an MLP by recurrent layers, and return the relative errors: in discrete time with eigenvalues 0, and in
    continuous time with eigenvalues -1/ε for several values of ε.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = ((16, 4), (16,), (3, 16), (3,))
    A, a, B, b = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    x = torch.randn(2, 50, 4, generator=generator, dtype=torch.float64)
    expected = torch.tanh(x @ A.mT + a) @ B.mT + b

    def layer(weight: Tensor, bias: Tensor, epsilon: float | None) -> Callable[[Tensor], Tensor]:
        d_output, d_input = weight.shape
        value = 0.0 if epsilon is None else -1 / epsilon
        options: dict[str, Any] = {"time": "discrete"} if epsilon is None else {"dt": 0.01}
        eigenvalues = torch.full((d_output,), value, dtype=torch.float64)
        with torch.random.fork_rng(devices=[]):  # the random weights are replaced below
            model = RealSSM(d_input, d_output, d_output, map="direct", bias=False, eigenvalues=eigenvalues, **options)
        model = model.double()
        with torch.no_grad():
            model.w.fill_(value)
            model.B.copy_(weight if epsilon is None else weight / epsilon)
            model.C.copy_(torch.eye(d_output, dtype=torch.float64))
        return lambda x: model(x)[0] + bias

    def error(epsilon: float | None) -> float:
        with torch.no_grad():
            found = layer(B, b, epsilon)(torch.tanh(layer(A, a, epsilon)(x)))
        return float((found - expected).norm() / expected.norm())

    return {"discrete": np.array(error(None)), "continuous": np.array([error(e) for e in config.epsilons])}


@stage("derivation")
def derivation(config: AppendixConfig, run: Run) -> Mapping[str, np.ndarray]:
    """Return G(w)/|w| (gradient scale over weight) at w = 0.1 … 3 for two solutions of the differential equation that
    defines the map ``best``: the solution that StableSSM prints, and the correct solution.
    """
    w = torch.linspace(0.1, 3, 30, dtype=torch.float64, requires_grad=True)
    found = {}
    for name, f in (("best", -1 / (w**2 + 1)), ("printed", -torch.exp(w**2 + 1))):
        (slope,) = torch.autograd.grad(f.sum(), w, retain_graph=True)
        found[name] = (slope.abs() / f**2 / w).detach().numpy()
    return {"w": w.detach().numpy(), **found}


def bound(config: AppendixConfig) -> np.ndarray:
    """Return the right-hand side of the inequality in equation 56 of StableSSM for every length, with one input channel
    and with the constant L₀ of this equation equal to 1.
    """
    T = np.array(config.lengths, dtype=float)
    return np.exp(config.floors[0] * T) * (T + 1) ** -1.1 / 2


def figures(config: AppendixConfig, stages: Stages) -> Figures:
    """Yield a figure of the smallest possible sum of weights against the length of the sequence, and of the largest
    learning rates against the initial time scale.
    """
    sizes = {f"λ ≥ {floor:g}": one["sizes"] for floor, one in weights.all(config, stages).items()}
    sizes["equation 56"] = bound(config)
    rates = {map: one["largest"] for map, one in largest_rates.all(config, stages).items()}
    yield Figure(
        "appendix",
        "Left: the smallest |c||u| of a sum of exponentials that stays within 10 % of 1/(t + 1)^1.1 up to T. Right: "
        "the largest rate with which gradient descent on one mode converges, against the time scale it starts from.",
        [
            Panel("remark B.2", "length T", "θ²", lines(config.lengths, sizes, "both"), y_scale="log"),
            Panel(
                "appendix F", "initial time scale", "largest rate", lines(config.starts, rates, "both"), "log", "log"
            ),
        ],
    )


def claims(config: AppendixConfig, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each statement in the README of the experiment, in the same order."""
    yield from _remark(config, stages)
    yield from _descent(config, stages)
    found = mlp(stages)
    off, errors = float(found["discrete"]), found["continuous"]
    yield Claim(
        "two state-space layers with zero recurrent weights are an MLP",
        "figure 7",
        f"relative error {off:.1e} in discrete time",
        rules.graded(off <= config.exact),
        "In the continuous time of equation 2, zero recurrent weights integrate the input.",
    )
    falls = bool((np.diff(errors) < 0).all())
    yield Claim(
        "in continuous time, fast modes approximate the MLP",
        "beyond the paper",
        f"relative errors {listed(errors, '.1e')} for λ = -1/ε, ε = {listed(config.epsilons, 'g')}",
        rules.ours(rules.given(falls, rules.at_most(float(errors[-1]), config.near))),
        f"At most {config.near:g} at the smallest ε, falling with ε, holds; inputs are constant for 0.01.",
    )
    solved = derivation(stages)
    for name, statement, source in (
        ("best", "G(w)/|w| of f = -1/(aw² + b) is constant", "appendix G"),
        ("printed", "G(w)/|w| of f with ln|f| = aw² + b is constant", "equations 126 and 127"),
    ):
        spread = float(np.ptp(solved[name]) / solved[name].max())
        yield Claim(
            statement,
            source,
            f"relative spread {spread:.1e} over w = 0.1 to 3",
            rules.graded(spread <= config.exact),
            "The integral of f′/f² is -1/f, so that -1/f = aw² + b; with ln f the appendix's result does not follow.",
        )


def _remark(config: AppendixConfig, stages: Stages) -> Claims:
    tight, free = (weights(stages, floor)["sizes"] for floor in config.floors)
    limit = (1 - config.tolerance) * bound(config)
    held = tight >= limit
    yield Claim(
        "weights are at least as large as equation 56 says",
        "remark B.2",
        f"θ² {listed(tight, '.2g')} at T = {listed(config.lengths, 'g')}",
        rules.most(int(held.sum()), len(held)),
        f"The bound is {listed(limit, '.2g')}; all rates are at least {config.floors[0]:g}.",
    )
    slope, start = np.polyfit(config.lengths, np.log(tight), 1)
    rest = np.log(tight) - (slope * np.array(config.lengths) + start)
    straight = float(1 - (rest**2).sum() / ((np.log(tight) - np.log(tight).mean()) ** 2).sum())
    yield Claim(
        "weights grow exponentially with the length",
        "remark B.2: exponential in the sequence length",
        f"log θ² grows by {slope:.3g} per step, R² = {straight:.4f}",
        rules.graded(straight > config.straight and slope >= config.floors[0] / 2, bool(slope > 0)),
        f"'Reproduced' requires R² above {config.straight:g} and a slope of half of β₀ = {config.floors[0]:g} or more.",
    )
    factor = float(free.max() / free.min())
    yield Claim(
        "with slow modes the weights do not grow",
        "beyond the paper",
        f"θ² {listed(free, '.3g')}",
        rules.ours(rules.at_most(factor, config.flat)),
        f"All rates at least {config.floors[1]:g}. The largest is {factor:.3g} times the smallest.",
    )


def _descent(config: AppendixConfig, stages: Stages) -> Claims:
    ends, rate = descent(stages), np.array(config.simple)
    away, home = ~np.isfinite(ends["fourth"]), ends["square"] < 10.0
    yield Claim(
        "on x⁴ gradient descent diverges from 1/(2η) + 1 for every rate η",
        "appendix F",
        f"for {int(away.sum())} of {len(rate)} rates",
        rules.most(int(away.sum()), len(rate)),
        f"η = {listed(rate, 'g')}.",
    )
    small = rate <= 0.5
    yield Claim(
        "on x² gradient descent converges for every rate up to 1/2",
        "appendix F",
        f"for {int(home[small].sum())} of {int(small.sum())} rates",
        rules.most(int(home[small].sum()), int(small.sum())),
        f"It converges up to {rate[home].max(initial=0.0):g} of {listed(rate, 'g')}: below 1 it always does.",
    )
    largest = {map: one["largest"] for map, one in largest_rates.all(config, stages).items()}
    factor = {map: float(np.nanmax(one) / np.nanmin(one)) if np.isfinite(one).all() else np.inf
              for map, one in largest.items()}  # fmt: skip
    held = [factor[map] <= config.flat if map == "best" else factor[map] >= config.steep for map in MAPS]
    yield Claim(
        "one rate suits all memories with best, and with no other map",
        "appendix F: the criterion is associated with convergence under a large rate",
        f"largest rates from τ₀ = {listed(config.starts, 'g')} differ by the factors {listed(factor, '.2g')}",
        rules.given(held[-1], rules.some(held)),
        "; ".join(f"{map}: {listed(one, '.2g')}" for map, one in largest.items())
        + f". At most {config.flat:g} for best and at least {config.steep:g} for the others; inf: no rate suits.",
    )


run = computing(weights, descent, largest_rates, mlp, derivation)
SMOKE = AppendixConfig(lengths=(4, 8, 12), modes=12, starts=(20.0, 200.0), rates=16, steps=50)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=AppendixConfig(), minutes=(0.1, 2.0))

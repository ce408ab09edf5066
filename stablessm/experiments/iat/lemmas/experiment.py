"""Computes two things. The first is how well a sum of exponentials approximates a memory function if every exponential
decays at least at a common rate. The second is the bound of lemma A.10 of IAT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.report.figure import Figure, Panel

KINDS = ("exponential", "polynomial")
CASES = ("bounded", "derivative", "free")
"""What is approximated: the memory function with bounded weights, the memory function and its derivative with bounded
weights, or the memory function with any weights."""
FAMILIES = ("symmetric", "rank-one", "row")
NORMAL = ("symmetric", "rank-one")


@dataclass(frozen=True)
class LemmasConfig:
    """Settings of ``ia-lemmas``: widths, rates, matrix sizes, and thresholds of the claims. The paper gives
    no values.
    """

    widths: tuple[int, ...] = (2, 4, 8, 16, 32)
    rate: float = 0.3
    """The smallest rate β₀ of the modes."""
    weights: float = 5.0
    """Largest Σ|aᵢ|."""
    horizon: float = 40.0
    points: int = 401
    sizes: tuple[int, ...] = (4, 16, 64, 256)
    """Sizes of the matrices."""
    abscissa: float = 0.5
    starts: int = 32
    steps: int = 400
    settled: float = 0.1
    """An error has settled if the largest width improves it by less than this fraction."""
    reached: float = 1e-3
    """Largest error that counts as an approximation."""


def memory(kind: str, t: np.ndarray, order: int) -> np.ndarray:
    """Return the memory function ``kind`` (``order=0``) or its derivative (``order=1``) at the times t."""
    if kind == "exponential":
        return np.exp(-t / 2) * (-0.5) ** order
    return (t + 1) ** -1.1 if order == 0 else -1.1 * (t + 1) ** -2.1


@stage("sums-{kind}-{case}", over=lambda config: [(kind, case) for kind in KINDS for case in CASES])
def errors(config: LemmasConfig, run: Run, kind: str, case: str) -> Mapping[str, np.ndarray]:
    """Approximate the memory ``kind`` by sums of m exponentials with fixed rates. Return for each width m the smallest
    possible maximum error, or NaN if the solver fails. ``case`` is ``free`` (any weights), ``bounded`` (the sum of the
    absolute weights is bounded) or ``derivative`` (bounded, and the derivative of the memory is approximated too).
    """
    from scipy.optimize import linprog

    t = np.linspace(0, config.horizon, config.points)
    found = []
    for width in config.widths:
        rates = np.geomspace(config.rate, 30.0, width)
        rows, goals = [np.exp(-rates * t[:, None])], [memory(kind, t, 0)]
        if case == "derivative":
            rows, goals = [*rows, -rates * rows[0]], [*goals, memory(kind, t, 1)]
        modes, goal = np.vstack(rows), np.concatenate(goals)
        both = np.hstack([modes, -modes])
        ones, total = np.ones((len(goal), 1)), np.append(np.ones(2 * width), 0.0)[None]
        A = np.vstack([np.hstack([both, -ones]), np.hstack([-both, -ones])])
        b = np.concatenate([goal, -goal])
        if case != "free":
            A, b = np.vstack([A, total]), np.append(b, config.weights)
        cost = np.append(np.zeros(2 * width), 1.0)
        solved = linprog(cost, A, b, bounds=(0, None), method="highs")
        found.append(float(solved.fun) if solved.status == 0 else np.nan)
    return {"errors": np.array(found)}


def matrix(family: str, size: int, abscissa: float) -> Tensor:
    """Return a recurrent matrix (size, size) whose eigenvalues have real parts of at most -``abscissa``; ``family`` is
    the kind of matrix, such as ``symmetric`` or ``rank-one``.
    """
    eye, one = torch.eye(size, dtype=torch.float64), torch.ones(size, 1, dtype=torch.float64)
    if family == "symmetric":
        generator = torch.Generator().manual_seed(size)
        Q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
        return Q @ torch.diag(-torch.linspace(abscissa, abscissa + 1, size, dtype=torch.float64)) @ Q.mT
    if family == "rank-one":
        return -abscissa * eye - one @ one.mT
    first = -abscissa * eye
    first[0, 1:] = 1
    return first


@stage("bound-{family}", over=lambda config: FAMILIES)
def bounds(config: LemmasConfig, run: Run, family: str) -> Mapping[str, np.ndarray]:
    """Return three arrays (sizes,), one entry per matrix size: the largest value of the cubic form in lemma A.10 of IAT
    that gradient ascent found (``value``), and the ratios M₀/β₀ (``entries``) and ‖W‖₂/β₀ (``spectral``). The lemma
    says that M₀/β₀ is an upper bound of the cubic form. M₀ is the largest entry of the recurrent matrix W, and -β₀ the
    largest real part of its eigenvalues.
    """
    from scipy.linalg import solve_continuous_lyapunov

    rows = []
    for size in config.sizes:
        W = matrix(family, size, config.abscissa)
        P = torch.from_numpy(solve_continuous_lyapunov(W.numpy().T, -np.eye(size)))
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(config.starts, size, generator=generator, dtype=torch.float64)
        v[: config.starts // 2] /= size**0.5
        v[: config.starts // 2, 0] += 1  # one large entry and many small ones
        best = 0.0
        for step in range(config.steps):
            unit = (v / v.norm(dim=1, keepdim=True)).requires_grad_()
            value = 2 * ((unit @ P) * unit**2 * (unit @ W.mT)).sum(1).abs()
            best = max(best, float(value.detach().max()))
            (slope,) = torch.autograd.grad(value.sum(), unit)
            v = unit.detach() + 0.3 * (1 - step / config.steps) * slope / slope.norm(dim=1, keepdim=True)
        norm = float(torch.linalg.matrix_norm(W, 2))
        rows.append((best, float(W.abs().max()) / config.abscissa, norm / config.abscissa))
    found = np.array(rows).T
    return {"value": found[0], "entries": found[1], "spectral": found[2]}


def figures(config: LemmasConfig, stages: Stages) -> Figures:
    """Yield a figure with two panels. The first shows the approximation errors against the number of exponentials; the
    second shows the cubic form of lemma A.10, relative to its bound, against the matrix size.
    """
    drawn = {f"{kind}, {case}": errors(stages, kind, case)["errors"] for kind in KINDS for case in CASES}
    ratios = {family: one["value"] / one["entries"] for family, one in bounds.all(config, stages).items()}
    yield Figure(
        "lemmas",
        f"Left: the smallest largest error of sums whose rates are at least {config.rate:g}. Right: the largest "
        "value found of lemma A.10's form, relative to its bound M₀/β₀.",
        [
            Panel(
                "theorem A.4, lemma A.11", "number of modes", "error", lines(config.widths, drawn, "both"), "log", "log"
            ),
            Panel("lemma A.10", "size of W", "value / bound", lines(config.sizes, ratios, "both"), "log", "log"),
        ],
    )


def claims(config: LemmasConfig, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each statement in the README of the experiment, in the same order."""
    t = np.linspace(0, config.horizon, config.points)
    least = float((memory("polynomial", t, 0) - config.weights * np.exp(-config.rate * t)).max() / 2)
    for case, source in (("bounded", "lemma A.11"), ("derivative", "theorem A.4")):
        found = errors(stages, "polynomial", case)["errors"]
        gain = float(1 - found[-1] / found[-2])
        above = bool((found >= least).all())
        yield Claim(
            "uniformly decaying sums do not approximate a polynomial memory"
            + (", nor the memory and its derivative" if case == "derivative" else ""),
            source,
            f"errors {listed(found, '.3g')} at m = {listed(config.widths, 'g')}",
            rules.given(above, rules.graded(gain <= config.settled, True)),
            f"Rates of at least {config.rate:g}, Σ|aᵢ| ≤ {config.weights:g}. No sum is better than {least:.2g}. The "
            f"last width is better by {gain:.1%}; 'reproduced' requires at most {config.settled:.0%}.",
        )
    fast = errors(stages, "exponential", "bounded")["errors"]
    yield Claim(
        "uniformly decaying sums approximate an exponential memory",
        "beyond the paper",
        f"errors {listed(fast, '.2g')}",
        rules.ours(rules.at_most(float(fast[-1]), config.reached)),
        f"At most {config.reached:g} at m = {config.widths[-1]} holds.",
    )
    bounded, free = (errors(stages, "polynomial", case)["errors"] for case in ("bounded", "free"))
    yield Claim(
        "without a bound on the weights, fast modes approximate the polynomial memory better",
        "beyond the paper",
        f"errors {listed(free, '.2g')}, and with the bound {listed(bounded, '.2g')}",
        rules.ours(rules.at_most(float(free[-1] / bounded[-1]), 0.5)),
        f"Half of the error or less at m = {config.widths[-1]} holds.",
    )
    values = bounds.all(config, stages)
    ratios = {family: one["value"] / one["entries"] for family, one in values.items()}
    held = [bool((ratio <= 1 + 1e-9).all()) for ratio in ratios.values()]
    yield Claim(
        "with bounded entries the bound of the Lyapunov argument is uniform in the width",
        "lemma A.10",
        "; ".join(f"{family} {listed(ratio, '.2g')}" for family, ratio in ratios.items()),
        rules.some(held),
        f"The largest value found relative to M₀/β₀, at m = {listed(config.sizes, 'g')}; above 1 the lemma fails. "
        "Entries bounded by M₀ allow |Wv|₂ = √m M₀|v|₂, and ‖P‖ ≤ 1/(2β₀) requires normal matrices (an erratum).",
    )
    spectral = {family: float((values[family]["value"] / values[family]["spectral"]).max()) for family in NORMAL}
    yield Claim(
        "for normal matrices of bounded spectral norm the bound is uniform in the width",
        "beyond the paper",
        f"largest value relative to ‖W‖₂/β₀: {listed(spectral, '.2g')}",
        rules.ours(rules.graded(max(spectral.values()) <= 1 + 1e-9)),
        "At most 1 holds. The values are lower bounds, found by ascent.",
    )


run = computing(errors, bounds)
SMOKE = LemmasConfig(widths=(2, 4), horizon=20.0, points=41, sizes=(4, 16), starts=8, steps=20)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=LemmasConfig(), minutes=(0.1, 1.0))

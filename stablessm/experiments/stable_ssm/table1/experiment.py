"""Compares the formulas for gradient scales in table 1 of StableSSM with gradient scales computed by automatic
differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from stablessm import reparam
from stablessm._typing import Time
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.report.figure import Figure, Panel, Series


@dataclass(frozen=True)
class Row:
    """One row of table 1 of StableSSM: a map and the printed formula for its gradient scale G."""

    time: Time
    map: str
    printed: str
    formula: Callable[[Tensor], Tensor]
    where: str = "table 1"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the row, ``TIME-MAP``. The stage of the row and its line in the figure have the
        same name.
        """
        return f"{self.time}-{self.map}"

    def f(self) -> reparam.Reparameterization:
        """Return the reparameterization that the row describes."""
        return reparam.get(self.map, self.time, **self.options)


exp, log = torch.exp, torch.log
ROWS = [
    Row("continuous", "direct", "1/w²", lambda w: 1 / w**2, "equation 12"),
    Row("continuous", "relu", "1/w² · 1{w > 0}", lambda w: (w > 0) / w**2),
    Row("continuous", "exp", "e^(−w)", lambda w: exp(-w)),
    Row("continuous", "softplus", "e^w / ((1 + e^w) log(1 + e^w)²)",
        lambda w: exp(w) / ((1 + exp(w)) * log(1 + exp(w)) ** 2)),
    Row("continuous", "best", "2a|w|", lambda w: 2 * w.abs()),
    Row("discrete", "direct", "1/(1 − w)²", lambda w: 1 / (1 - w) ** 2, "theorem 3.4"),
    Row("discrete", "relu", "e^(−w)/(1 − e^(−w))² · 1{w > 0}", lambda w: (w > 0) * exp(-w) / (1 - exp(-w)) ** 2),
    Row("discrete", "exp", "e^(w − e^w) / (1 − e^(−e^w))²", lambda w: exp(w - exp(w)) / (1 - exp(-exp(w))) ** 2),
    Row("discrete", "softplus", "e^(−w)", lambda w: exp(-w)),
    Row("discrete", "tanh", "e^(2w)", lambda w: exp(2 * w)),
    Row("discrete", "best", "2|w|", lambda w: 2 * w.abs(), options={"b": 0.5}),
]  # fmt: skip


@dataclass(frozen=True)
class TableConfig:
    """Settings of ``st-table1``: grid of weights, and accuracy of the integrals and sums."""

    weights: int = 400
    """Number of weights; an even number leaves out w = 0."""
    reach: float = 6.0
    """The grid of weights is from -reach to reach."""
    closest: float = 1e-3
    """Smallest distance of an eigenvalue from the stability boundary."""
    nodes: int = 1200
    """Number of nodes of the quadrature over log time."""
    terms: int = 40_000
    """Number of terms of the discrete sum; the remainder is at most the share e^(−closest · terms) of it."""
    exact: float = 1e-6
    """Largest relative deviation of a formula that counts as correct; quadrature and sums are accurate to about
    1e-9."""


@stage(lambda row: row.name, over=lambda config: ROWS)
def measured(config: TableConfig, run: Run, row: Row) -> Mapping[str, Tensor]:
    """Return the gradient scale G of a map in three versions: ``derived`` by automatic differentiation, ``printed`` in
    the paper, and as this library computes it (``ours``). They are evaluated at weights at which the map is stable.
    """
    f = row.f()
    grid = torch.linspace(-config.reach, config.reach, config.weights, dtype=torch.float64)
    if row.map == "direct":  # clip and relu have few stable weights
        grid = torch.linspace(-1, 1, config.weights, dtype=torch.float64)
    w = grid[(f.distance(grid) >= config.closest) | (f.derivative(grid) == 0)]
    derived = [integral(f, x, config.nodes) if row.time == "continuous" else series(f, x, config.terms) for x in w]
    found = {"w": w, "eigenvalue": f(w), "derived": torch.stack(derived), "printed": row.formula(w)}
    return found | {"ours": f.gradient_scale(w)}


def integral(f: reparam.Reparameterization, w: Tensor, nodes: int) -> Tensor:
    """Return the gradient scale G in continuous time, ∫ |∂_w e^(f(w)s)| ds (StableSSM, equation 85), computed by the
    trapezoidal rule in log s.
    """
    y = torch.linspace(-30, 30, nodes, dtype=torch.float64)
    slopes = term_slopes(w, lambda leaf: torch.exp(f(leaf) * y.exp()), nodes)
    return torch.trapezoid(slopes.abs() * y.exp(), y)


def series(f: reparam.Reparameterization, w: Tensor, terms: int) -> Tensor:
    """Return the gradient scale G in discrete time, the sum of |∂_w f(w)^k| over the powers k (StableSSM, equation 90).
    ``terms`` is the number of powers.
    """
    k = torch.arange(terms, dtype=torch.float64)
    return term_slopes(w, lambda leaf: f(leaf) ** k, terms).abs().sum()


def term_slopes(w: Tensor, terms: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Return the derivative with respect to w of each of ``count`` terms, computed by automatic differentiation.
    ``terms`` maps ``count`` copies of w to the terms.
    """
    leaf = w.expand(count).clone().requires_grad_()
    return torch.autograd.grad(terms(leaf).sum(), leaf)[0]


def deviation(found: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return the relative error |G/derived − 1| of a formula for the gradient scale G; ``name`` is the version of G in
    ``found``. The error is 0 where both values are 0.
    """
    derived, other = found["derived"], found[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(derived == other, 0.0, np.abs(other / derived - 1))


def figures(config: TableConfig, stages: Stages) -> Figures:
    """Yield a figure of the derived and the printed gradient scale G, and of their ratio."""
    scales, quotients, some = [], [], slice(None, None, max(1, config.weights // 50))
    for time in get_args(Time):
        series = []
        for row in (row for row in ROWS if row.time == time):
            found = measured(stages, row)
            w, derived, printed = (found[name] for name in ("w", "derived", "printed"))
            series.append(Series(row.map, w, derived, group=row.map))
            series.append(Series(f"{row.map}, printed", w[some], printed[some], "points", row.map))
            if deviation(found, "printed").max() > config.exact:
                quotients.append(Series(row.map, found["eigenvalue"], printed / derived))
        scales.append(Panel(f"{time} time", "weight w", "G(w)", series, "linear", "log", (1e-3, 1e6)))
    wrong = Panel("rows that fail (discrete time)", "eigenvalue λ", "printed / derived", quotients, "linear", "log")
    yield Figure(
        "gradient-scales",
        "Lines: G by automatic differentiation of the loss bound. Points: printed in the table. Right: where both "
        "differ: the printed value is too small, for negative eigenvalues only.",
        [*scales, wrong] if quotients else scales,
    )


def claims(config: TableConfig, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each row of the table."""
    yield from (claim(row, measured(stages, row), config.exact) for row in ROWS)


def claim(row: Row, found: Mapping[str, np.ndarray], exact: float) -> Claim:
    """Return a claim with its verdict: the printed formula in this row of the table equals the derived gradient scale.
    If they differ, the claim says where. The two are equal if their relative difference is at most ``exact``.
    """
    printed, corrected = deviation(found, "printed"), deviation(found, "ours")
    w, wrong = found["w"], printed > exact
    negative_only = False
    ours = f"relative deviation at most {printed.max():.1e}"
    why = f"{len(w)} weights from {w.min():.3g} to {w.max():.3g} were compared"
    if wrong.any():
        positive = found["eigenvalue"] >= 0
        negative_only = row.time == "discrete" and not wrong[positive].any()
        factor = np.where(wrong, found["derived"] / found["printed"], 0.0)
        at = int(factor.argmax())
        at_most = f"{printed[positive].max(initial=0):.1e}"
        ours = f"at most {at_most} for λ ≥ 0; for λ < 0 too small, up to {factor[at]:.3g} times"
        why += (
            f"; the printed value fails at {int(wrong.sum())} of them, {int((wrong & ~positive).sum())} with λ < 0, "
            f"and most at w = {w[at]:.3g}, λ = {found['eigenvalue'][at]:.3g}: |λ| belongs in place of λ (erratum 4)"
        )
    why += f". Our own G deviates by at most {corrected.max():.1e} everywhere."
    verdict = rules.graded(not wrong.any(), negative_only)
    name = f"{row.time} time, {row.map}{''.join(f' ({key} = {value})' for key, value in row.options.items())}"
    return Claim(f"{name}: G = {row.printed}", f"{row.printed} ({row.where})", ours, verdict, why)


run = computing(measured)
SMOKE = TableConfig(weights=40, closest=1e-2, terms=3000)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=TableConfig(), minutes=(0.02, 0.1))

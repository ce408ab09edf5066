"""Computes elementwise functions by two layers without memory, and compares the width of the layers with the proven
bound on their error (SSM-UA, proposition 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from stablessm.constructions.pointwise.elementwise import elementwise
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.words import listed, span
from stablessm.report.figure import Figure, Panel, Series

REQUIRED = 1e-3
"""The tolerance that every function of one variable must reach."""


class Function(NamedTuple):
    """A function f to approximate, its domain, and a Lipschitz constant of f that was derived by hand."""

    f: Callable[[np.ndarray], np.ndarray]
    domain: tuple[tuple[float, float], ...]
    lipschitz: float


def smooth(seed: int = 1, terms: int = 12) -> Function:
    """Return the function Σ a_k cos(k x + φ_k) with random phases φ_k; the coefficient a_k is a Gaussian random number
    divided by k.
    """
    draw = np.random.default_rng(seed)
    k = np.arange(1, terms + 1)
    a, phase = draw.normal(size=terms) / k, draw.uniform(0, 2 * np.pi, terms)
    return Function(lambda x: np.cos(np.multiply.outer(x, k) + phase) @ a, ((-1.0, 1.0),), float(np.abs(a * k).sum()))


def three(x: np.ndarray) -> np.ndarray:
    """Return the values of three functions at x, as a new last axis: sin(3x), x² and |x|."""
    return np.stack([np.sin(3 * x), x**2, np.abs(x)], axis=-1)


SCALAR = {
    "|x|": Function(np.abs, ((-1.0, 1.0),), 1.0),
    "sin(8x)": Function(lambda x: np.sin(8 * x), ((-1.0, 1.0),), 8.0),
    "tanh(50x)": Function(lambda x: np.tanh(50 * x), ((-1.0, 1.0),), 50.0),
    "random smooth": smooth(),
}
MORE = {
    "(sin 3x, x², |x|)": Function(three, ((-1.0, 1.0),), 3.0),
    "x₁x₂": Function(lambda x: x[:, 0] * x[:, 1], ((-1.0, 1.0),) * 2, 2**0.5),
    "exp(-2|x|²) in 2D": Function(lambda x: np.exp(-2 * (x**2).sum(1)), ((-1.0, 1.0),) * 2, 2 * np.exp(-0.5)),
}


@dataclass(frozen=True)
class ElementwiseConfig:
    """Settings of ``su-fig2``: tolerances and number of test points. The paper has only a drawing."""

    tolerances: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
    more_tolerances: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01)
    fresh: int = 1_000_000


@stage(lambda name: f"function-{list(SCALAR | MORE).index(name)}", over=lambda config: SCALAR | MORE)
def built(config: ElementwiseConfig, run: Run, name: str) -> Mapping[str, np.ndarray]:
    """Approximate one function at each tolerance. Return the width and the errors of the network, and how much its
    outputs at other steps change if the input at one step is replaced (a layer without memory gives 0).
    """
    target, rows, shown = (SCALAR | MORE)[name], [], []
    one, (low, high) = len(target.domain) == 1, np.array(target.domain).T
    x, line = np.random.default_rng(0).uniform(low, high, size=(config.fresh, len(low))), np.linspace(low, high, 201)
    for tol in config.tolerances if name in SCALAR else config.more_tolerances:
        found = elementwise(target.f, target.domain[0] if one else target.domain, tol, lipschitz=target.lipschitz)
        parts = np.array_split(x, 1 + len(x) // 50_000)
        fresh = max(float(np.abs(_values(target.f, part, one) - found(part)).max()) for part in parts)
        moved = _moved(found.model, torch.from_numpy(x[:50]))
        rows.append((tol, found.width, found.error, found.bound, fresh, found.condition, moved, found.certified))
        shown.append(found(line)[:, 0])
    names = ("tol", "width", "error", "bound", "fresh", "condition", "moved", "certified")
    columns = dict(zip(names, np.array(rows, dtype=float).T, strict=True))
    return {**columns, "x": line[:, 0], "f": _values(target.f, line, one)[:, 0], "y": np.array(shown)}


def _values(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, one: bool) -> np.ndarray:
    return f(x[:, 0] if one else x).reshape(len(x), -1)


@torch.no_grad()
def _moved(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Replace the input at the first step, and return the largest change of the outputs at the other steps."""
    changed = x.clone()
    changed[0] = x[1]
    return float((model(x[None])[0] - model(changed[None])[0])[0, 1:].abs().max())


def figures(config: ElementwiseConfig, stages: Stages) -> Figures:
    """Yield a figure of two functions with their approximations at a coarse tolerance, and of the proven bound on the
    error of all functions against the width.
    """
    rows, drawn = built.all(config, stages), []
    for name in ("|x|", "tanh(50x)"):
        row = rows[name]
        drawn.append(Series(name, row["x"], row["f"], "dashed", name))
        drawn.append(Series(f"{int(row['width'][0])} units", row["x"], row["y"][0], "solid", name))
    panels = [Panel("the coarsest", "x", "y", drawn)]
    for group, title in ((SCALAR, "functions of one variable"), (MORE, "vectors, and two variables")):
        lines = []
        for name in group:
            lines.append(Series(name, rows[name]["width"], rows[name]["bound"], "both", name))
            lines.append(Series(f"{name}, met", rows[name]["width"], rows[name]["fresh"], "dotted", name))
        panels.append(Panel(title, "hidden units", "error", lines, "log", "log"))
    yield Figure(
        "elementwise",
        f"Left: two of the functions and the network at tolerance {config.tolerances[0]:g}. Middle, right: the proven "
        f"bound against the width, and the largest error on {config.fresh} fresh points (dotted).",
        panels,
    )


def claims(config: ElementwiseConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on proposition 3.1 of SSM-UA for seven functions, and on the statement that
    the layers have no memory.
    """
    rows = built.all(config, stages)
    held = [(row["fresh"] <= row["bound"]) & (row["bound"] <= row["tol"]) for row in rows.values()]
    within = np.concatenate(held).tolist()
    tol = min(config.tolerances, key=lambda each: abs(np.log(each / REQUIRED)))
    at = config.tolerances.index(tol)
    yield Claim(
        "two layers with W = 0 and a sigmoidal activation approximate a continuous function to any accuracy",
        "for every ε there is a width",
        f"{sum(within)} of {len(within)} networks within the proven bound on {config.fresh} fresh points each; "
        f"units at {tol:g}: {listed({name: rows[name]['width'][at] for name in SCALAR}, '.0f')}; at "
        f"{config.more_tolerances[-1]:g}: {listed({name: rows[name]['width'][-1] for name in MORE}, '.0f')}",
        rules.given(all(row["certified"].all() for row in rows.values()), rules.most(sum(within), len(within))),
        "Each bound is proven from the weights and a Lipschitz constant of f that was derived by hand; nothing was "
        "trained; the least squares problems have condition numbers "
        f"{span(row['condition'].max() for row in rows.values())}.",
    )
    moved = max(float(row["moved"].max()) for row in rows.values())
    yield Claim(
        "the map is elementwise: y_k depends on x_k only",
        "W₁ = W₂ = 0",
        f"other steps move by {moved:g} when one input is replaced",
        rules.graded(moved == 0),
        "The eigenvalues are exactly zero, which the map `direct` can represent; b₂, zero in the paper, is the "
        "constant term here.",
    )


run = computing(built)
SMOKE = ElementwiseConfig(tolerances=(0.1, 0.01), more_tolerances=(0.3, 0.1), fresh=20_000)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=ElementwiseConfig(), minutes=(0.1, 2))

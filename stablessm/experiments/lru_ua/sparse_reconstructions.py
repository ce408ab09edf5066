"""Reconstructs the inputs up to a step from the state at this step, for many steps. The inputs are sparse in the Haar
basis. Shared by figures 7 and 8 of LRU-UA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import each
from stablessm.reconstruction import SparseDecoder, diagnose, haar, optimized, uniform_ring
from stablessm.report.figure import Figure, Panel, Series
from stablessm.scan.vandermonde import accumulate


@dataclass(frozen=True)
class SparseConfig:
    """Settings of the experiments on Haar-sparse inputs: sizes, ring and draws. Where LRU-UA, appendix E.2 gives a
    value, this value is the default.
    """

    r_min: float
    length: int = 4096
    functions: int = 32
    """Number P of Haar wavelets."""
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """State sizes N."""
    enough: int = 256
    """The state size N that is large enough according to the paper."""
    points: int = 32
    """Number of steps k at which the past is reconstructed."""
    signals: int = 32
    """Number of inputs with random Gaussian coefficients."""
    draws: int = 10
    negligible: float = 1e-2
    """Largest relative error that counts as negligible."""

    def steps(self) -> np.ndarray:
        """Return the steps k at which the inputs so far are reconstructed: evenly spaced numbers up to the length L."""
        return np.unique(np.linspace(1, self.length, self.points + 1)[1:].round().astype(int))


SMOKE: dict[str, Any] = {
    "length": 256, "functions": 8, "sizes": (8, 16, 32), "enough": 16, "points": 8, "signals": 4, "draws": 2
}  # fmt: skip
"""Settings of the smoke size."""


def inputs(config: SparseConfig) -> tuple[Tensor, Tensor]:
    """Return a basis (L, P) of P Haar wavelets, and random inputs (signals, L) that are linear combinations of these
    wavelets.
    """
    basis = haar(config.length, config.functions)
    alpha = np.random.default_rng(0).standard_normal((config.signals, config.functions))
    return basis, torch.from_numpy(alpha) @ basis.mT


@stage("errors-{kind}-{size}", over=lambda config: [(n, kind) for kind in ("ring", "optimized") for n in config.sizes])
def errors(config: SparseConfig, run: Run, size: int, kind: Literal["ring", "optimized"]) -> Mapping[str, Any]:
    """Reconstruct the inputs u_1 … u_k from the state x_k for several steps k. Return the relative root mean square
    error over all inputs, (draws, steps). ``kind`` says how the eigenvalues are chosen: several random draws on a ring,
    or optimized (a single draw).
    """
    basis, u = inputs(config)

    def error(lam: Tensor, k: int) -> float:
        off = SparseDecoder(lam, basis, k)(accumulate(u[:, :k], lam)) - u[:, :k]
        return float((off.square().sum() / u[:, :k].square().sum()).sqrt())

    placements = [optimized(size, config.length, basis=basis)]
    if kind == "ring":
        placements = [uniform_ring(size, config.r_min, seed=draw) for draw in range(config.draws)]
    return {"error": [[error(lam, k) for k in config.steps().tolist()] for lam in placements]}


@stage("ranks-{size}", over=lambda config: config.sizes)
def ranks(config: SparseConfig, run: Run, size: int) -> Mapping[str, np.ndarray]:
    """Return the numerical ranks of three matrices at several steps k, for the first draw of eigenvalues. V_k maps the
    inputs u_1 … u_k to the state x_k (``V``), Ψ_k maps Haar coefficients to these inputs (``basis``), and Ω_k = V_k Ψ_k
    (``product``).

    A complex state counts as a pair of real numbers.
    """
    (basis, _), lam = inputs(config), uniform_ring(size, config.r_min, seed=0)
    found = []
    for k in config.steps().tolist():
        decoder = SparseDecoder(lam, basis, k)
        found.append((diagnose(lam, k).rank, decoder.basis_rank, decoder.diagnosis.rank))
    return dict(zip(("V", "basis", "product"), np.array(found).T, strict=True))


run = computing(errors, ranks)


def figures(config: SparseConfig, stages: Stages) -> Figures:
    """Yield a figure of the ranks and of the reconstruction errors against the step, for random and for optimized
    eigenvalues.
    """
    steps, found = config.steps(), ranks.all(config, stages)

    def rank_lines(letter: str, name: str) -> list[Series]:
        drawn = lines(steps, {n: row[name] for n, row in found.items()}, name=f"{letter}, N = {{}}")
        return [*drawn, Series("Ψ", steps, found[config.sizes[-1]]["basis"], "dashed")]

    def error_panel(title: str, kind: Literal["ring", "optimized"]) -> Panel:
        middle = {n: np.median(errors(stages, n, kind)["error"], axis=0) for n in config.sizes}
        return Panel(title, "step k", "relative error of u up to k", lines(steps, middle, name="N = {}"), y_scale="log")

    yield Figure(
        "sparse",
        f"Inputs of {config.length} steps in the first {config.functions} Haar wavelets, reconstructed from the state "
        f"at step k. Ranks of the first draw; relative errors in the median over {config.draws} draws.",
        [
            Panel("rank of V", "step k", "rank", rank_lines("V", "V"), y_scale="log"),
            Panel("rank of Ω = VΨ", "step k", "rank", rank_lines("Ω", "product")),
            error_panel(f"error, |λ| in ({config.r_min:g}, 1)", "ring"),
            error_panel("error, optimized placement", "optimized"),
        ],
    )


def claims(config: SparseConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: is the state size in the paper large enough, how does the error depend on the
    state size, and are optimized eigenvalues better than random eigenvalues?
    """
    worst = {n: errors(stages, n, "ring")["error"].max(axis=1) for n in config.sizes}
    good = {n: int((row <= config.negligible).sum()) for n, row in worst.items()}
    doing = [n for n in config.sizes if good[n] == config.draws]
    published = worst[config.enough]
    yield Claim(
        f"at N = {config.enough} the error is negligible at every step, |λ| in ({config.r_min:g}, 1)",
        f"around N = {config.enough} is enough" if config.enough > 64 else f"N = {config.enough} is enough",
        f"below {config.negligible:.0%} at every k in {good[config.enough]} of {config.draws} draws; the largest "
        f"error over k is {np.median(published):.1e} in the median, {published.max():.1e} at worst",
        rules.most(good[config.enough], config.draws),
        f"Negligible in every draw from N = {min(doing)} on."
        if doing
        else f"No N up to {max(config.sizes)} is enough in every draw.",
    )
    medians = {n: float(np.median(row)) for n, row in worst.items()}
    first, *_, last = medians.values()
    yield Claim(
        "the error becomes uniformly negligible as N grows",
        "uniformly",
        f"largest error over k, median over draws: {each('{1:.1e} at N = {0}', medians.items())}",
        rules.graded(last <= config.negligible and last < first),
        f"Draws that do: {', '.join(f'{count} of {config.draws} at N = {n}' for n, count in good.items())}.",
    )
    placement = {n: float(errors(stages, n, "optimized")["error"].max()) for n in config.sizes}
    best = [n for n in config.sizes if placement[n] <= config.negligible]
    yield Claim(
        "a placement optimized for the basis needs fewer states",
        "left open (section 3.1)",
        f"largest error over k: {each('{1:.1e} at N = {0}', placement.items())}",
        rules.ours(rules.graded(bool(best) and (not doing or min(best) < min(doing)))),
        f"Eigenvalues on the circle, optimized for the state after {config.length} steps and tested at all steps. P = "
        f"{config.functions} real coefficients need at least {-(-config.functions // 2)} complex states.",
    )

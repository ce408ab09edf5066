"""Haar-sparse inputs reconstructed at every step: shared by figures 7 and 8 of LRU-UA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.reconstruction import SparseDecoder, diagnose, haar, optimized, uniform_ring
from stablessm.report.figure import Figure, Panel, Series
from stablessm.scan.vandermonde import accumulate


@dataclass(frozen=True)
class SparseConfig:
    """Sizes of the experiment. The defaults are the sizes in LRU-UA, appendix E.2, where the paper gives them."""

    r_min: float
    length: int = 4096
    functions: int = 32
    """Number P of Haar wavelets."""
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """State sizes N."""
    enough: int = 256
    """The N that is enough according to the paper."""
    points: int = 32
    """Number of steps k at which the past is reconstructed."""
    signals: int = 32
    """Number of inputs with random Gaussian coefficients."""
    draws: int = 10
    negligible: float = 1e-2
    """Relative error that counts as negligible."""

    def steps(self) -> np.ndarray:
        """Return the steps k, evenly spaced up to L."""
        return np.unique(np.linspace(1, self.length, self.points + 1)[1:].round().astype(int))


def inputs(config: SparseConfig) -> tuple[Tensor, Tensor]:
    """Return the basis (L, P) and inputs (signals, L)."""
    basis = haar(config.length, config.functions)
    alpha = np.random.default_rng(0).standard_normal((config.signals, config.functions))
    return basis, torch.from_numpy(alpha) @ basis.mT


def _measure_errors(config: SparseConfig, run: Run, size: int, kind: Literal["ring", "optimized"] = "ring") -> None:
    def compute() -> Mapping[str, np.ndarray]:
        basis, u = inputs(config)
        if kind == "ring":
            placements = [uniform_ring(size, config.r_min, seed=draw) for draw in range(config.draws)]
        else:
            placements = [optimized(size, config.length, basis=basis)]
        rows = []
        for lam in placements:
            row = []
            for k in config.steps().tolist():
                decoder = SparseDecoder(lam, basis, k)
                off = decoder(accumulate(u[:, :k], lam)) - u[:, :k]
                row.append(float((off.square().sum() / u[:, :k].square().sum()).sqrt()))
            rows.append(row)
        return {"error": np.array(rows)}

    run.stage(f"errors-{kind}-{size}", compute)


def errors(stages: Stages, size: int, kind: Literal["ring", "optimized"] = "ring") -> np.ndarray:
    """Return relative root mean square errors of u_1 … u_k from x_k, (draws, steps)."""
    return stages[f"errors-{kind}-{size}"]["error"]


def _measure_ranks(config: SparseConfig, run: Run, size: int) -> None:
    def compute() -> Mapping[str, np.ndarray]:
        basis, _ = inputs(config)
        lam = uniform_ring(size, config.r_min, seed=0)
        found = []
        for k in config.steps().tolist():
            decoder = SparseDecoder(lam, basis, k)
            found.append((diagnose(lam, k).rank, decoder.basis_rank, decoder.diagnosis.rank))
        return dict(zip(("V", "basis", "product"), np.array(found).T, strict=True))

    run.stage(f"ranks-{size}", compute)


def ranks(stages: Stages, size: int) -> Mapping[str, np.ndarray]:
    """Return numerical ranks of V_k, Ψ_k and Ω_k in real numbers for the first draw: (steps,) each."""
    return stages[f"ranks-{size}"]


def compute_all(config: SparseConfig, run: Run) -> None:
    """Compute errors of the rings and of the optimized placement, and ranks, for every size."""
    for size in config.sizes:
        _measure_errors(config, run, size)
        _measure_ranks(config, run, size)
    for size in config.sizes:
        _measure_errors(config, run, size, "optimized")


def figures(config: SparseConfig, stages: Stages) -> list[Figure]:
    """Return figures of ranks and errors by step, with the optimized placement for comparison."""
    steps = config.steps().tolist()
    rank_lines = [Series(f"V, N = {n}", steps, ranks(stages, n)["V"].tolist()) for n in config.sizes]
    some = config.sizes[-1]
    rank_lines.append(Series("Ψ", steps, ranks(stages, some)["basis"].tolist(), "dashed"))
    omega = [Series(f"Ω, N = {n}", steps, ranks(stages, n)["product"].tolist()) for n in config.sizes]
    omega.append(Series("Ψ", steps, ranks(stages, some)["basis"].tolist(), "dashed"))

    def lines(kind: Literal["ring", "optimized"]) -> list[Series]:
        middle = {n: np.median(errors(stages, n, kind), axis=0) for n in config.sizes}
        return [Series(f"N = {n}", steps, row.tolist()) for n, row in middle.items()]

    ring = f"|λ| in ({config.r_min:g}, 1)"
    caption = (
        f"Inputs of {config.length} steps in the first {config.functions} Haar wavelets, reconstructed from the "
        "state at "
        f"step k. Ranks of the first draw; relative errors in the median over {config.draws} draws."
    )
    return [
        Figure("sparse", caption, [
            Panel("rank of V", "step k", "rank", rank_lines, y_scale="log"),
            Panel("rank of Ω = VΨ", "step k", "rank", omega),
            Panel(f"error, {ring}", "step k", "relative error of u up to k", lines("ring"), y_scale="log"),
            Panel("error, optimized placement", "step k", "relative error of u up to k", lines("optimized"),
                  y_scale="log"),
        ])
    ]  # fmt: skip


def uniform_error(config: SparseConfig, stages: Stages, size: int) -> np.ndarray:
    """Return the largest error over all k, (draws,)."""
    return errors(stages, size).max(axis=1)


def claims(config: SparseConfig, stages: Stages) -> list[Claim]:
    """Check the published N, the dependence on N and the optimized placement."""
    worst = {n: uniform_error(config, stages, n) for n in config.sizes}
    good = {n: int((row <= config.negligible).sum()) for n, row in worst.items()}
    doing = [n for n in config.sizes if good[n] == config.draws]
    medians = [float(np.median(row)) for row in worst.values()]
    placement = {n: float(errors(stages, n, "optimized").max()) for n in config.sizes}
    published = worst[config.enough]
    best = [n for n in config.sizes if placement[n] <= config.negligible]
    return [
        Claim(
            f"at N = {config.enough} the error is negligible at every step, |λ| in ({config.r_min:g}, 1)",
            f"around N = {config.enough} is enough" if config.enough > 64 else f"N = {config.enough} is enough",
            f"below {config.negligible:.0%} at every k in {good[config.enough]} of {config.draws} draws; the largest "
            f"error over k is {np.median(published):.1e} in the median, {published.max():.1e} at worst",
            rules.most(good[config.enough], config.draws),
            f"Negligible in every draw from N = {min(doing)} on." if doing else
            f"No N up to {max(config.sizes)} is enough in every draw.",
        ),
        Claim(
            "the error becomes uniformly negligible as N grows",
            "uniformly",
            "largest error over k, median over draws: "
            + ", ".join(f"{e:.1e} at N = {n}" for n, e in zip(config.sizes, medians, strict=True)),
            rules.graded(medians[-1] <= config.negligible and medians[-1] < medians[0]),
            "Draws that do: " + ", ".join(f"{good[n]} of {config.draws} at N = {n}" for n in config.sizes) + ".",
        ),
        Claim(
            "a placement optimized for the basis needs fewer states",
            "left open (section 3.1)",
            "largest error over k: " + ", ".join(f"{e:.1e} at N = {n}" for n, e in placement.items()),
            rules.ours(rules.graded(bool(best) and (not doing or min(best) < min(doing)))),
            f"Eigenvalues on the circle, optimized for the state after {config.length} steps and tested at all "
            "steps. P = "
            f"{config.functions} real coefficients need at least {-(-config.functions // 2)} complex states.",
        ),
    ]  # fmt: skip


def experiment(
    number: int, run: Callable[[SparseConfig, Run], None], paper: SparseConfig, smoke: SparseConfig
) -> Experiment[SparseConfig]:
    """Return the experiment of figure 7 or 8; ``run`` is defined in the folder of its README."""
    return Experiment(
        id=f"lr-fig{number}",
        title=f"Haar-sparse inputs from the state, |λ| in ({paper.r_min:g}, 1)",
        source=f"LRU-UA, figure {number}",
        question="How large must a state be to reconstruct an input that is sparse in a basis, at every step?",
        claim=f"N = {paper.enough} states are enough for P = {paper.functions} wavelets and L = {paper.length} steps.",
        configs={"smoke": smoke, "paper": paper},
        minutes={"smoke": 0.1, "paper": 3.0},
        run=run,
        figures=figures,
        claims=claims,
    )

"""Tests whether sums of exponentials approximate a memory stably if their time scales are random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.families import STABILITY, improving, of_errors
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.iat.exponential_sums import SHORTEST, TARGETS, fitted_layer, longest_time
from stablessm.instruments import PerturbationFamily, perturbation_error
from stablessm.report.figure import Figure, Panel

EXPECTED = {"exponential": "stable", "polynomial": "unstable"}


@dataclass(frozen=True)
class FamiliesConfig:
    """Settings of ``ia-families``: number of random families, widths, horizon, and radii of the perturbations. A family
    consists of one model per width.
    """

    families: int = 20
    widths: tuple[int, ...] = (4, 8, 16, 32)
    horizon: int = 1000
    radii: tuple[float, ...] = (0.0, *(5e-4 * 4.0**k for k in range(11)))
    steps: int = 20
    """Number of steps of gradient ascent."""


def scales(kind: str, widths: Sequence[int], seed: int) -> torch.Tensor:
    """Return the random time scales of the widest model of a family. ``widths`` are the widths of the family in
    ascending order. The distribution of the time scales is log-uniform. The time scales of every narrower model are
    among the time scales of the wider models.

    >>> narrow, wide = scales("polynomial", (4,), 0), scales("polynomial", (4, 8), 0)
    >>> len(wide), bool(torch.isin(narrow, wide).all()), wide.max().item() == longest_time("polynomial", 8)
    (8, True, True)
    """
    rng, found = np.random.default_rng(seed), np.zeros(0)
    for width in widths:
        longest = longest_time(kind, width)
        drawn = np.exp(rng.uniform(np.log(SHORTEST), np.log(longest), width - len(found)))
        if longest not in found:
            drawn[-1] = longest
        found = np.append(found, drawn)
    return torch.from_numpy(np.sort(found))


@stage("{kind}-{seed}", over=lambda config: product(TARGETS, range(config.families)))
def errors(config: FamiliesConfig, run: Run, kind: str, seed: int) -> Mapping[str, np.ndarray]:
    """Return the perturbation errors E_m(β), (widths, radii), of one random family: one fitted sum of exponentials for
    each width m.
    """
    rows = []
    for i, width in enumerate(config.widths):
        target, longest = TARGETS[kind], longest_time(kind, width)
        drawn = scales(kind, config.widths[: i + 1], seed)
        layer = fitted_layer(target, width, longest, config.horizon, "direct", scales=drawn)
        curve = perturbation_error(
            layer, target, config.radii, norm="kernel_l1", parameters="recurrent", search="ascent", samples=1,
            steps=config.steps, horizon=config.horizon, seed=seed, progress=False,
        )  # fmt: skip
        rows.append(curve.lower)
    return {"errors": np.stack(rows)}


def family(config: FamiliesConfig, found: np.ndarray) -> PerturbationFamily:
    """Return the perturbation errors ``found`` (widths, radii) of a random family as a :class:`PerturbationFamily`. If
    a wider model does not fit better than all narrower models, this model and all wider models are left out.
    """
    return improving(of_errors(config.widths, config.radii, found))


def radius(config: FamiliesConfig, found: np.ndarray) -> float:
    """Return the smallest radius β at which perturbations increase the error of the widest model by at least half of
    the unperturbed error of the narrowest model. Return inf if there is no such radius.
    """
    lost = found[-1] - found[-1, 0] >= 0.5 * found[0, 0]
    return float(np.array(config.radii)[lost][0]) if lost.any() else np.inf


def figures(config: FamiliesConfig, stages: Stages) -> Figures:
    """Yield a figure of the perturbation errors E_m(β). Each line is the median over the random families."""
    found = errors.all(config, stages)
    panels = []
    for kind in TARGETS:
        table = np.stack([found[kind, seed]["errors"] for seed in range(config.families)])
        rows = dict(zip(config.widths, np.median(table, 0)[:, 1:], strict=True))
        panels.append(
            Panel(
                f"{kind} memory",
                "β",
                "E_m(β), L¹ of the kernel",
                lines(config.radii[1:], rows, name="m = {}"),
                "log",
                "log",
            )
        )
    yield Figure(
        "families",
        f"Perturbation error of sums of exponentials with random rates: medians over {config.families} families.",
        panels,
    )


def claims(config: FamiliesConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: every family of models with random time scales approximates exponential memory
    stably, and none approximates polynomial memory stably.
    """
    found, middle = errors.all(config, stages), {}
    for kind, expected in EXPECTED.items():
        own = [found[kind, seed]["errors"] for seed in range(config.families)]
        kinds = Counter(STABILITY[family(config, one).verdict().stable] for one in own)
        middle[kind] = float(np.median([radius(config, one) for one in own]))
        yield Claim(
            f"{kind} memory has {'a' if expected == 'stable' else 'no'} stable approximation, for random rates",
            f"figure 1: {expected}",
            ", ".join(f"{count} {word}" for word, count in sorted(kinds.items())),
            rules.most_seen(kinds, expected),
            f"Of {config.families} families of random time scales, {config.horizon} steps, widths up to "
            f"{config.widths[-1]}, by gradient ascent.",
        )
    yield Claim(
        "polynomial memory tolerates smaller perturbations than exponential memory",
        "beyond the paper",
        f"median radius {middle['polynomial']:.3g} against {middle['exponential']:.3g}",
        rules.ours(rules.graded(middle["polynomial"] < middle["exponential"])),
        "The smallest β at which the widest model has lost half of the narrowest model's error.",
    )


run = computing(errors)
SMOKE = FamiliesConfig(families=1, widths=(2, 4), horizon=30, radii=(0.0, 1e-2, 0.1), steps=2)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=FamiliesConfig(), minutes=(0.1, 5.0), jobs=errors.jobs
)

"""Computes reconstruction errors and condition numbers for several state sizes N and inner radii r_min of the ring of
eigenvalues, and for optimized eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Run, Stages, described, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import each, listed
from stablessm.experiments.lru_ua import reconstructions as images

Measure: TypeAlias = Callable[[Mapping[str, np.ndarray], str], float]
Placements: TypeAlias = dict[str, images.Placement]


@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Settings of ``lr-fig4``: state sizes, rings and draws. The largest state size exceeds the number of pixels of an
    image.
    """

    sizes: tuple[int, ...] = (128, 256, 512, 784, 1024)

    def small(self) -> list[int]:
        """Return the state sizes that are smaller than the number of pixels of an image. For these sizes, optimized
        eigenvalues are compared with random eigenvalues.
        """
        return [size for size in self.sizes if size < self.length]

    def square(self) -> int:
        """Return the largest state size that is at most the number of pixels of an image."""
        return max(size for size in self.sizes if size <= self.length)


def run(config: Config, run: Run) -> None:
    """Reconstruct the images for every state size N and ring, and with optimized eigenvalues for N below the number of
    pixels L.
    """
    for placement, size in [*images.measured.keys(config), *(("optimized", size) for size in config.small())]:
        images.measured.compute(config, run, placement, size)
    images.seen.compute(config, run)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield three figures: the errors and condition numbers with the solver ``complex``, as published; the errors and
    condition numbers with the solver ``real``, which assumes real inputs; and the condition numbers with optimized
    eigenvalues, compared with random eigenvalues.
    """

    rings: Placements = {f"r_min = {ring:g}": ring for ring in config.rings}

    def panel(title: str, y: str, measure: Measure, solver: str, placements: Placements, sizes: Sequence[int]) -> Panel:
        rows = {
            name: [measure(images.measured(stages, placement, size), solver) for size in sizes]
            for name, placement in placements.items()
        }
        return Panel(title, "state size N", y, lines(sizes, rows, "both"), y_scale="log")

    most = config.square()
    for solver, label in (("complex", "the pseudo-inverse of V"), ("real", "the equations for real inputs")):
        cases: dict[str, images.Case] = {f"{name}, N = {most}": (ring, most, solver) for name, ring in rings.items()}
        yield Figure(
            f"errors-{solver}",
            f"By {label}: mean square errors over {config.images} images and {config.draws} draws, the median of κ² "
            "(beyond 1e30 it is rounding), and errors by position.",
            [
                panel("error", "mean square error", images.error, solver, rings, config.sizes),
                panel("condition number of VᵀV", "κ²", squared_condition, solver, rings, config.sizes),
                images.position_panel(config, stages, cases),
            ],
        )
    placements: Placements = {"optimized": "optimized", **rings}
    yield Figure(
        "placements",
        "Condition numbers of the equations for a real input, N < L: optimized placement against random rings.",
        [panel("placements for a real input", "κ", images.condition, "real", placements, config.small())],
    )


def squared_condition(found: Mapping[str, np.ndarray], solver: str) -> float:
    """Return κ², the square of the condition number of the reconstruction with this solver. ``found`` are the results
    of :func:`.reconstructions.measured`.
    """
    return images.condition(found, solver) ** 2


def falls(values: Iterable[float]) -> bool:
    """Return True if the values strictly decrease."""
    return all(after < before for before, after in pairwise(values))


def table(config: Config, numbers: Mapping[tuple[float, int], float], digits: str) -> str:
    """Format ``numbers``, a dict with pairs (ring, state size) as keys, as text with one row per ring and one number
    per state size. ``digits`` is the format of a number.
    """
    rows = {ring: [numbers[ring, size] for size in config.sizes] for ring in config.rings}
    return "; ".join(f"r_min = {ring:g}: {listed(row, digits)}" for ring, row in rows.items())


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: how errors and condition numbers depend on the state size, on the ring and on
    the position in the image, and whether optimized eigenvalues are better.
    """
    found = {key: images.measured(stages, *key) for key in product(config.rings, config.sizes)}
    mse, kappa = (
        {key: measure(one, "complex") for key, one in found.items()} for measure in (images.error, images.condition)
    )
    sizes = listed(config.sizes, "")
    in_size = [falls(mse[ring, size] for size in config.sizes) for ring in config.rings]
    in_ring = {size: falls(mse[ring, size] for ring in config.rings) for size in config.sizes}
    exceptions = ", ".join(f"N = {size}" for size, holds in in_ring.items() if not holds)
    yield Claim(
        "the error falls with the state size and with r_min",
        "decreasing in both",
        f"mean square errors for N = {sizes}: {table(config, mse, '.1e')}",
        rules.some([*in_size, *in_ring.values()]),
        f"Falls with N on {sum(in_size)} of {len(in_size)} rings, with r_min at {sum(in_ring.values())} of "
        f"{len(in_ring)} sizes{f' (not at {exceptions})' if exceptions else ''}; by V⁺.",
    )
    most, nearest = config.square(), config.rings[-1]
    rings = [falls(kappa[ring, size] for ring in config.rings) for size in config.sizes]
    beyond = [falls(kappa[ring, size] for size in config.sizes if size >= config.length) for ring in config.rings]
    yield Claim(
        "the condition number falls with r_min and with the state size",
        "the same pattern for VᵀV",
        f"median κ of V for N = {sizes}: {table(config, kappa, '.0e')}",
        rules.some([*rings, *beyond, falls(kappa[nearest, size] for size in config.sizes)]),
        f"Falls with r_min at {sum(rings)} of {len(rings)} sizes. For N < L, VᵀV is singular; the condition number of "
        f"V grows up to N = L and falls beyond ({sum(beyond)} of {len(beyond)} rings). Beyond 1e15 κ is rounding.",
    )
    reached = {ring: images.reach(config, stages, found[ring, most], "complex") for ring in config.rings}
    yield Claim(
        "for r_min well below 1 only the last few hundred positions are covered",
        "the last few hundreds of tokens",
        f"N = {most}, at most {config.lacking:.0%} of the energy missing: "
        + ", ".join(f"the last {n} of {config.length} at r_min = {ring:g}" for ring, n in reached.items()),
        rules.graded(0 < reached[config.rings[0]] < config.recent[1] * config.length < reached[nearest], True),
        "By V⁺; errors over all images and draws are summed from the last position backward.",
    )
    placed = {size: images.measured(stages, "optimized", size) for size in config.small()}
    pairs = [
        [(n, of(one, "real"), min(of(found[r, n], "real") for r in config.rings)) for n, one in placed.items()]
        for of in (images.condition, images.error)
    ]
    yield Claim(
        "the optimized placement is better conditioned than random rings at equal N < L",
        "left open (section 3.1)",
        f"κ of the equations for a real input: {each('N = {}: {:.3g} against {:.1e}', pairs[0], '; ')}",
        rules.ours(rules.some([ours < others for _, ours, others in pairs[0]])),
        "Compared with the best of the rings, in the median over draws. Mean square errors: "
        f"{each('N = {}: {:.1e} against {:.1e}', pairs[1], '; ')}.",
    )


SMOKE = Config(data="synthetic", images=30, side=10, sizes=(30, 60, 100, 130), draws=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.2, 6.0))

"""Errors of reconstructed digits and condition numbers against N and r_min, and a better placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.lru_ua import reconstructions as images
from stablessm.report.figure import Figure


@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Sizes of the experiment, with more states than pixels at most."""

    sizes: tuple[int, ...] = (128, 256, 512, 784, 1024)


def small(config: Config) -> list[int]:
    """Return the sizes N < L, where placements are compared."""
    return [size for size in config.sizes if size < config.length]


def square(config: Config) -> int:
    """Return the largest N up to L."""
    return max(size for size in config.sizes if size <= config.length)


def run(config: Config, run: Run) -> None:
    """Compute every size on every ring, and the optimized placement below L."""
    for size in config.sizes:
        for ring in config.rings:
            images.measure_errors(config, run, ring, size)
    for size in small(config):
        images.measure_errors(config, run, "optimized", size)
    images.measure_images(config, run)


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return figures as published, and with the equations for real inputs."""

    def line(ring: float, solver: str, what: str) -> list[float]:
        found = [images.measured(stages, ring, size) for size in config.sizes]
        return [images.error(one, solver) if what == "error" else images.condition(one, solver) ** 2 for one in found]

    def column(solver: str) -> list[Figure]:
        errors = {f"r_min = {ring:g}": line(ring, solver, "error") for ring in config.rings}
        squares = {f"r_min = {ring:g}": line(ring, solver, "condition") for ring in config.rings}
        most = square(config)
        cases: dict[str, images.Case] = {f"r_min = {ring:g}, N = {most}": (ring, most, solver) for ring in config.rings}
        panels = [
            images.size_panel("error", "mean square error", config.sizes, errors),
            images.size_panel("condition number of VᵀV", "κ²", config.sizes, squares),
        ]
        named = "the pseudo-inverse of V" if solver == "complex" else "the equations for real inputs"
        caption = (
            f"By {named}: mean square errors over {config.images} images and {config.draws} draws, the median of κ² "
            "(beyond 1e30 it is rounding), and errors by position."
        )
        return [Figure(f"errors-{solver}", caption, [*panels, images.position_panel(config, stages, cases)])]

    placed = {
        "optimized": [images.condition(images.measured(stages, "optimized", size), "real") for size in small(config)],
        **{
            f"r_min = {ring:g}": [
                images.condition(images.measured(stages, ring, size), "real") for size in small(config)
            ]
            for ring in config.rings
        },
    }
    panel = images.size_panel("placements for a real input", "κ", small(config), placed)
    caption = "Condition numbers of the equations for a real input, N < L: optimized placement against random rings."
    return [*column("complex"), *column("real"), Figure("placements", caption, [panel])]


def falls(values: list[float]) -> bool:
    """Return whether each number is below the one before."""
    return all(after < before for before, after in pairwise(values))


def table(config: Config, numbers: Mapping[tuple[float, int], float], digits: str) -> str:
    """Return a table in words: a row for each ring, a number for each size."""
    rows = {ring: [format(numbers[ring, size], digits) for size in config.sizes] for ring in config.rings}
    return "; ".join(f"r_min = {ring:g}: {', '.join(row)}" for ring, row in rows.items())


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check errors, condition numbers, positions and the placement."""
    found = {(ring, size): images.measured(stages, ring, size) for ring in config.rings for size in config.sizes}
    mse = {key: images.error(one, "complex") for key, one in found.items()}
    kappa = {key: images.condition(one, "complex") for key, one in found.items()}
    in_size = {ring: falls([mse[ring, size] for size in config.sizes]) for ring in config.rings}
    in_ring = {size: falls([mse[ring, size] for ring in config.rings]) for size in config.sizes}
    rings = {size: falls([kappa[ring, size] for ring in config.rings]) for size in config.sizes}
    above = [size for size in config.sizes if size >= config.length]
    beyond = {ring: falls([kappa[ring, size] for size in above]) for ring in config.rings}
    most, nearest = square(config), config.rings[-1]
    reached = {ring: images.reach(config, stages, found[ring, most], "complex") for ring in config.rings}
    sizes = ", ".join(map(str, config.sizes))
    exceptions = [f"N = {size}" for size, holds in in_ring.items() if not holds]
    return [
        Claim(
            "the error falls with the state size and with r_min",
            "decreasing in both",
            f"mean square errors for N = {sizes}: {table(config, mse, '.1e')}",
            rules.some([*in_size.values(), *in_ring.values()]),
            f"Falls with N on {sum(in_size.values())} of {len(in_size)} rings, with r_min at {sum(in_ring.values())} "
            f"of {len(in_ring)} sizes{' (not at ' + ', '.join(exceptions) + ')' if exceptions else ''}; by V⁺.",
        ),
        Claim(
            "the condition number falls with r_min and with the state size",
            "the same pattern for VᵀV",
            f"median κ of V for N = {sizes}: {table(config, kappa, '.0e')}",
            rules.some([*rings.values(), *beyond.values(), falls([kappa[nearest, size] for size in config.sizes])]),
            f"Falls with r_min at {sum(rings.values())} of {len(rings)} sizes. For N < L, VᵀV is singular; the "
            "condition number of V grows up to N = L and falls beyond "
            f"({sum(beyond.values())} of {len(beyond)} rings). Beyond 1e15 κ is rounding.",
        ),
        Claim(
            "for r_min well below 1 only the last few hundred positions are covered",
            "the last few hundreds of tokens",
            f"N = {most}, at most {config.lacking:.0%} of the energy missing: "
            + ", ".join(f"the last {n} of {config.length} at r_min = {ring:g}" for ring, n in reached.items()),
            rules.graded(0 < reached[config.rings[0]] < config.recent[1] * config.length < reached[nearest], True),
            "By V⁺; errors over all images and draws are summed from the last position backward.",
        ),
        placement(config, stages, found),
    ]


def placement(config: Config, stages: Stages, found: Mapping[tuple[float, int], Mapping[str, np.ndarray]]) -> Claim:
    """Check that the optimized placement is better conditioned than the best of the rings."""
    placed = {size: images.measured(stages, "optimized", size) for size in small(config)}
    pairs = {}
    for name, measure in (("κ", images.condition), ("error", images.error)):
        pairs[name] = {
            size: (measure(one, "real"), min(measure(found[ring, size], "real") for ring in config.rings))
            for size, one in placed.items()
        }
    return Claim(
        "the optimized placement is better conditioned than random rings at equal N < L",
        "left open (section 3.1)",
        "κ of the equations for a real input: "
        + "; ".join(f"N = {size}: {ours:.3g} against {others:.1e}" for size, (ours, others) in pairs["κ"].items()),
        rules.ours(rules.some([ours < others for ours, others in pairs["κ"].values()])),
        "Compared with the best of the rings, in the median over draws. Mean square errors: "
        + "; ".join(f"N = {size}: {ours:.1e} against {others:.1e}" for size, (ours, others) in pairs["error"].items())
        + ".",
    )


EXPERIMENT = Experiment(
    id="lr-fig4",
    title="Reconstructed digits: errors and condition numbers",
    source="LRU-UA, figure 4",
    question="How do errors and condition numbers depend on the state size, the ring and the position?",
    claim="Both fall with N and with r_min; for small r_min only the last few hundred positions are covered.",
    configs={
        "smoke": Config(data="synthetic", images=30, side=10, sizes=(30, 60, 100, 130), draws=2),
        "paper": Config(),
    },
    minutes={"smoke": 0.2, "paper": 6.0},
    run=run,
    figures=figures,
    claims=claims,
)

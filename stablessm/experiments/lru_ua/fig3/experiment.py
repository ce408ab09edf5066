"""Digits reconstructed from the last state, for several state sizes and rings."""

from __future__ import annotations

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.lru_ua import reconstructions as images
from stablessm.report.figure import Figure


def run(config: images.DigitsConfig, run: Run) -> None:
    """Compute every size on every ring."""
    for size in config.sizes:
        for ring in config.rings:
            images.measure_errors(config, run, ring, size)
    images.measure_images(config, run)


def figures(config: images.DigitsConfig, stages: Stages) -> list[Figure]:
    """Return a grid of digits for each ring, one figure for each solver."""

    def cases(ring: float, solver: str) -> dict[str, images.Case]:
        return {f"N = {size}": (ring, size, solver) for size in config.sizes}

    return [
        Figure(
            f"digits-{solver}",
            f"Images of {config.length} pixels from the last state, {label}; first draw of the eigenvalues.",
            [images.digit_rows(config, stages, f"r_min = {ring:g}", cases(ring, solver)) for ring in config.rings],
        )
        for solver, label in images.SOLVERS.items()
    ]


def claims(config: images.DigitsConfig, stages: Stages) -> list[Claim]:
    """Check the images at the two largest N, and the recent past on the disk."""
    (*_, fewer, most), (disk, *_, ring) = config.sizes, config.rings
    near, less, far = (images.measured(stages, r, n) for r, n in ((ring, most), (ring, fewer), (disk, most)))
    over = f"over {config.images} images and {config.draws} draws"
    energy = images.seen(stages)["energy"]
    spans = ", ".join(
        f"{images.reach(config, stages, images.measured(stages, disk, n), 'complex')} at N = {n}" for n in config.sizes
    )
    covered = images.reach(config, stages, far, "complex")
    found = []
    for solver, label in images.SOLVERS.items():
        found += [
            Claim(
                f"almost perfect at N = {most} with |λ| in ({ring:g}, 1), {label}",
                "almost perfect reconstruction",
                f"mean square error {images.spread(near, solver)} {over}",
                rules.at_most(images.error(near, solver), config.perfect, 10 * config.perfect),
                f"{images.missing(energy, near, solver):.1%} of the energy is missing; up to a mean square of "
                f"{config.perfect:g} counts as invisible, up to ten times this as partly.",
            ),
            Claim(
                f"satisfactory at N = {fewer} with |λ| in ({ring:g}, 1), {label}",
                "a satisfactory result",
                f"mean square error {images.spread(less, solver)} {over}",
                rules.at_most(images.missing(energy, less, solver), config.satisfactory, config.fair),
                f"{images.missing(energy, less, solver):.1%} of the energy is missing; up to {config.satisfactory:.0%} "
                f"counts as satisfactory. Rank {less['rank'][:, list(images.SOLVERS).index(solver)].min()} of "
                f"{config.length}.",
            ),
        ]
    return [
        *found,
        Claim(
            "with r_min = 0 only recent history is recovered",
            "recent history",
            f"pixels from the last one back with at most {config.lacking:.0%} of their energy missing: {spans}",
            rules.graded(config.is_recent(covered)),
            f"By V⁺; {images.missing(energy, far, 'complex'):.0%} of the energy is missing at N = {most}, "
            f"{images.missing(energy, far, 'real'):.0%} with the equations for real inputs.",
        ),
    ]


EXPERIMENT = Experiment(
    id="lr-fig3",
    title="Digits from the last state: N and r_min",
    source="LRU-UA, figure 3",
    question="How large must the state be, and how close to the circle the eigenvalues, to reconstruct an image?",
    claim=(
        "Near the circle images are almost perfect at N = L = 784 and satisfactory at 512; with r_min = 0 only "
        "recent history."
    ),
    configs={
        "smoke": images.DigitsConfig(data="synthetic", images=30, side=10, sizes=(50, 70, 100), draws=2, shown=4),
        "paper": images.DigitsConfig(draws=10),
    },
    minutes={"smoke": 0.2, "paper": 4.0},
    run=run,
    figures=figures,
    claims=claims,
)

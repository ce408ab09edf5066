"""Reconstructs digits from the last state of a recurrence, for several state sizes and rings of eigenvalues."""

from __future__ import annotations

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Stages, computing, described, rules
from stablessm.experiments.lru_ua import reconstructions as images


def figures(config: images.DigitsConfig, stages: Stages) -> Figures:
    """Yield one figure per solver: a grid of reconstructed digits for each ring."""

    def cases(ring: float, solver: str) -> dict[str, images.Case]:
        return {f"N = {size}": (ring, size, solver) for size in config.sizes}

    for solver, label in images.SOLVERS.items():
        yield Figure(
            f"digits-{solver}",
            f"Images of {config.length} pixels from the last state, {label}; first draw of the eigenvalues.",
            [images.digit_rows(config, stages, f"r_min = {ring:g}", cases(ring, solver)) for ring in config.rings],
        )


def claims(config: images.DigitsConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on how well images are reconstructed with the two largest state sizes, and on
    which part of an image can be recovered with eigenvalues in the whole unit disk.
    """
    (*_, fewer, most), (disk, *_, ring) = config.sizes, config.rings
    near, less, far = (images.measured(stages, r, n) for r, n in ((ring, most), (ring, fewer), (disk, most)))
    over = f"over {config.images} images and {config.draws} draws"
    for solver, label in images.SOLVERS.items():
        yield Claim(
            f"images are almost perfect at N = {most} with |λ| in ({ring:g}, 1), {label}",
            "almost perfect reconstruction",
            f"mean square error {images.spread(near, solver)} {over}",
            rules.at_most(images.middle(near, solver), config.perfect, 10 * config.perfect),
            f"{images.missing(stages, near, solver):.1%} of the energy is missing; up to a mean square of "
            f"{config.perfect:g} counts as invisible, up to ten times this as partly.",
        )
        missing = images.missing(stages, less, solver)
        yield Claim(
            f"images are satisfactory at N = {fewer} with |λ| in ({ring:g}, 1), {label}",
            "a satisfactory result",
            f"mean square error {images.spread(less, solver)} {over}",
            rules.at_most(missing, config.satisfactory, config.fair),
            f"{missing:.1%} of the energy is missing; up to {config.satisfactory:.0%} counts as satisfactory. Rank "
            f"{less['rank'][:, images.INDEX[solver]].min()} of {config.length}.",
        )
    spans = {n: images.reach(config, stages, images.measured(stages, disk, n), "complex") for n in config.sizes}
    yield Claim(
        "with r_min = 0 only recent history is recovered",
        "recent history",
        f"pixels from the last one back with at most {config.lacking:.0%} of their energy missing: "
        + ", ".join(f"{covered} at N = {n}" for n, covered in spans.items()),
        rules.graded(config.is_recent(spans[most])),
        f"By V⁺; {images.missing(stages, far, 'complex'):.0%} of the energy is missing at N = {most}, "
        f"{images.missing(stages, far, 'real'):.0%} with the equations for real inputs.",
    )


run = computing(images.measured, images.seen)
SMOKE = images.DigitsConfig(data="synthetic", images=30, side=10, sizes=(50, 70, 100), draws=2, shown=4)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=images.DigitsConfig(draws=10), minutes=(0.2, 4.0)
)

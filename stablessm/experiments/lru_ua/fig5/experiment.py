"""Reconstructs digits from the last state of a recurrence whose eigenvalues are roots of unity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from stablessm._renamed import renamed
from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Run, Stages, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.lru_ua import reconstructions as images

PLACEMENTS: dict[images.Placement, tuple[str, str, str]] = {
    "roots": ("complex", "roots of unity", "roots of unity"),
    "optimized": ("real", "optimized for real inputs", "optimized"),
}
"""Solver, title of the images and name of the line of each placement."""


@renamed("artefacts")
@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Settings of ``lr-fig5``: state sizes and thresholds. An image of L pixels is reconstructed from L states, from
    L/2 states, and from other numbers of states.
    """

    sizes: tuple[int, ...] = (128, 256, 392, 512, 784)
    unit: float = 1e-10
    """A condition number counts as 1 if it differs from 1 by at most this value."""
    rounding: float = 1e-12
    """Largest error that counts as a rounding error, after sums of some hundred terms."""
    artifacts: float = 0.05
    """An image has artifacts if at least this fraction of its energy is missing."""


@stage("worst-pixel")
def largest(config: Config, run: Run) -> dict[str, float]:
    """Return the largest error of a reconstructed pixel over all images, as ``error``. The eigenvalues are roots of
    unity, and there are as many states as pixels.
    """
    return {"error": max(float(part.abs().max()) for part in images.differences(config, "roots", config.length))}


def run(config: Config, run: Run) -> None:
    """Reconstruct the images for every state size, first with roots of unity as eigenvalues, then with random
    eigenvalues.
    """
    for size, placement in product(config.sizes, PLACEMENTS):
        images.measured.compute(config, run, placement, size)
    largest.compute(config, run)
    images.seen.compute(config, run)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the digits that are reconstructed with each choice of eigenvalues, and of the errors."""
    grids, rows = [], {}
    for placement, (solver, title, name) in PLACEMENTS.items():
        cases: dict[str, images.Case] = {f"N = {size}": (placement, size, solver) for size in config.sizes}
        grids.append(images.digit_rows(config, stages, title, cases))
        rows[name] = [images.error(images.measured(stages, placement, size), solver) for size in config.sizes]
    errors = lines(config.sizes, rows, "both")
    yield Figure(
        "digits",
        f"Images of {config.length} pixels from the last state. Left: N-th roots of unity. Middle: the placement for "
        f"real inputs, which needs half as many states. Right: mean square errors over {config.images} images.",
        [*grids, Panel("error", "state size N", "mean square error", errors, y_scale="log")],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts. With roots of unity and as many states as pixels, the condition number is 1 and
    the errors are of machine precision. With fewer states there are artifacts. For real inputs, half as many states
    suffice.
    """
    whole = images.measured(stages, "roots", config.length)
    kappa, worst = images.condition(whole, "complex"), float(largest(stages)["error"])
    yield Claim(
        "with the N-th roots of unity, N = L, the condition number is 1",
        "exactly 1",
        f"κ - 1 = {kappa - 1:.1e}",
        rules.graded(abs(kappa - 1) <= config.unit),
        f"N = {config.length}, in double precision, from singular values.",
    )
    yield Claim(
        f"with the N-th roots of unity images are reconstructed perfectly, N = {config.length}",
        "perfectly",
        f"no pixel of {config.images} images is off by more than {worst:.1e}; mean square error "
        f"{images.error(whole, 'complex'):.1e}",
        rules.graded(worst <= config.rounding),
        f"Pixels lie between 0 and 1; up to {config.rounding:g} counts as rounding.",
    )
    fewer = [size for size in config.sizes if size < config.length]
    lost = {size: images.missing(stages, images.measured(stages, "roots", size), "complex") for size in fewer}
    yield Claim(
        "for smaller N the images have artifacts",
        "undesired artifacts",
        "energy missing: " + ", ".join(f"{part:.0%} at N = {size}" for size, part in lost.items()),
        rules.graded(min(lost.values()) > config.artifacts),
        "λ^N = 1, so the state cannot distinguish pixels N positions apart: V⁺ gives each of them their mean.",
    )
    half = min(size for size in config.sizes if 2 * size >= config.length)
    placed = images.measured(stages, "optimized", half)
    yield Claim(
        f"a real image needs half as many eigenvalues: N = {half} for L = {config.length}",
        "not in the paper",
        f"mean square error {images.error(placed, 'real'):.1e}, κ - 1 = {images.condition(placed, 'real') - 1:.1e}; "
        f"with as many roots of unity {lost[half]:.0%} of the energy is missing",
        rules.ours(rules.graded(images.error(placed, "real") <= config.rounding**2)),
        "Roots of unity come in conjugate pairs, which are redundant for a real input; reconstruction.optimized "
        "takes points above the real axis only.",
    )


SMOKE = Config(data="synthetic", images=30, side=10, sizes=(30, 50, 70, 100), shown=4)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 1.0))

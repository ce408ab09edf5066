"""Digits reconstructed with roots of unity as eigenvalues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stablessm._renamed import renamed
from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.lru_ua import reconstructions as images
from stablessm.reconstruction import Decoder
from stablessm.report.figure import Figure

PLACEMENTS: tuple[images.Placement, ...] = ("roots", "optimized")


@renamed("artefacts")
@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Sizes of the experiment; the last size is the number of pixels, another one half of it."""

    sizes: tuple[int, ...] = (128, 256, 392, 512, 784)
    unit: float = 1e-10
    """Largest distance from 1 of a condition number that counts as 1."""
    rounding: float = 1e-12
    """Largest error that counts as rounding, after sums of some hundred terms."""
    artifacts: float = 0.05
    """Least share of the energy that an image with artifacts lacks."""


def _measure_largest(config: Config, run: Run) -> None:
    def compute() -> Mapping[str, np.ndarray]:
        lam = images.eigenvalues("roots", config.length, config.length)
        decoder = Decoder(lam, config.length, real=False)
        parts = images.pixels(config).split(1000)
        worst = max(float((images.read_back(part, decoder, lam) - part).abs().max()) for part in parts)
        return {"error": np.array(worst)}

    run.stage("worst-pixel", compute)


def largest(stages: Stages) -> float:
    """Return the largest error of any pixel of any image, with roots of unity and N = L."""
    return float(stages["worst-pixel"]["error"])


def run(config: Config, run: Run) -> None:
    """Compute both placements at every size."""
    for size in config.sizes:
        for placement in PLACEMENTS:
            images.measure_errors(config, run, placement, size)
    _measure_largest(config, run)
    images.measure_images(config, run)


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return figures of digits for both placements, and of errors."""
    roots: dict[str, images.Case] = {f"N = {size}": ("roots", size, "complex") for size in config.sizes}
    placed: dict[str, images.Case] = {f"N = {size}": ("optimized", size, "real") for size in config.sizes}
    lines = {
        "roots of unity": [images.error(images.measured(stages, "roots", size), "complex") for size in config.sizes],
        "optimized": [images.error(images.measured(stages, "optimized", size), "real") for size in config.sizes],
    }
    caption = (
        f"Images of {config.length} pixels from the last state. Left: N-th roots of unity. Middle: the placement for "
        f"real inputs, which needs half as many states. Right: mean square errors over {config.images} images."
    )
    return [
        Figure("digits", caption, [
            images.digit_rows(config, stages, "roots of unity", roots),
            images.digit_rows(config, stages, "optimized for real inputs", placed),
            images.size_panel("error", "mean square error", config.sizes, lines),
        ])
    ]  # fmt: skip


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check κ = 1 and machine precision at N = L, artifacts below, and half of the states for real inputs."""
    whole = images.measured(stages, "roots", config.length)
    kappa, worst = images.condition(whole, "complex"), largest(stages)
    fewer = [size for size in config.sizes if size < config.length]
    energy = images.seen(stages)["energy"]
    lost = {size: images.missing(energy, images.measured(stages, "roots", size), "complex") for size in fewer}
    half = min(size for size in config.sizes if 2 * size >= config.length)
    placed = images.measured(stages, "optimized", half)
    return [
        Claim(
            "with the N-th roots of unity, N = L, the condition number is 1",
            "exactly 1",
            f"κ - 1 = {kappa - 1:.1e}",
            rules.graded(abs(kappa - 1) <= config.unit),
            f"N = {config.length}, in double precision, from singular values.",
        ),
        Claim(
            f"with the N-th roots of unity images are reconstructed perfectly, N = {config.length}",
            "perfectly",
            f"no pixel of {config.images} images is off by more than {worst:.1e}; mean square error "
            f"{images.error(whole, 'complex'):.1e}",
            rules.graded(worst <= config.rounding),
            f"Pixels lie between 0 and 1; up to {config.rounding:g} counts as rounding.",
        ),
        Claim(
            "for smaller N the images have artifacts",
            "undesired artifacts",
            "energy missing: " + ", ".join(f"{part:.0%} at N = {size}" for size, part in lost.items()),
            rules.graded(min(lost.values()) > config.artifacts),
            "λ^N = 1, so the state cannot distinguish pixels N positions apart: V⁺ gives each of them their mean.",
        ),
        Claim(
            f"a real image needs half as many eigenvalues: N = {half} for L = {config.length}",
            "not in the paper",
            f"mean square error {images.error(placed, 'real'):.1e}, κ - 1 = "
            f"{images.condition(placed, 'real') - 1:.1e}; with as many roots of unity {lost[half]:.0%} of the energy "
            "is missing",
            rules.ours(rules.graded(images.error(placed, "real") <= config.rounding**2)),
            "Roots of unity come in conjugate pairs, which are redundant for a real input; reconstruction.optimized "
            "takes "
            "points above the real axis only.",
        ),
    ]


EXPERIMENT = Experiment(
    id="lr-fig5",
    title="Digits from the last state: roots of unity",
    source="LRU-UA, figure 5",
    question="What can be reconstructed if the eigenvalues are roots of unity?",
    claim="Everything, with condition number 1, at N = L; artifacts at smaller N.",
    configs={
        "smoke": Config(data="synthetic", images=30, side=10, sizes=(30, 50, 70, 100), shown=4),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 1.0},
    run=run,
    figures=figures,
    claims=claims,
)

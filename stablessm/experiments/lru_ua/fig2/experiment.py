"""Digits reconstructed from the last state: eigenvalues on the whole disk, and close to the circle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.lru_ua import reconstructions as images
from stablessm.reconstruction import Decoder
from stablessm.report.figure import Figure

CHUNK = 1000


@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Sizes of the experiment: one N, the whole disk and a ring close to the circle."""

    sizes: tuple[int, ...] = (784,)
    rings: tuple[float, ...] = (0.0, 0.99)
    alike: float = 1e-2
    """Largest relative difference of errors that count as equal."""


def _measure_directly(config: Config, run: Run) -> None:
    def compute() -> Mapping[str, np.ndarray]:
        lam = images.eigenvalues(config.rings[-1], config.sizes[0], config.length)
        decoder = Decoder(lam, config.length, real=False)
        parts = images.pixels(config).split(CHUNK)
        total = sum(float((images.read_back(part, decoder, lam) - part).square().sum()) for part in parts)
        return {"mse": np.array(total / images.pixels(config).numel())}

    run.stage("image-by-image", compute)


def directly(stages: Stages) -> float:
    """Return the mean square error over all images, computed image by image, for the first draw of the last ring."""
    return float(stages["image-by-image"]["mse"])


def run(config: Config, run: Run) -> None:
    """Compute both rings, and the comparison with the image-by-image error."""
    for ring in config.rings:
        images.measure_errors(config, run, ring, config.sizes[0])
    _measure_directly(config, run)
    images.measure_images(config, run)


def cases(config: Config) -> dict[str, images.Case]:
    """Return the cases that are shown."""
    disk, ring = config.rings
    size = config.sizes[0]
    return {
        f"r_min = {disk:g}": (disk, size, "complex"),
        f"r_min = {ring:g}": (ring, size, "complex"),
        f"r_min = {disk:g}, real": (disk, size, "real"),
        f"r_min = {ring:g}, real": (ring, size, "real"),
    }


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return figures of digits and of errors by position."""
    title = f"{config.length} pixels from {config.sizes[0]} states"
    caption = (
        f"Images as sequences of {config.length} pixels, reconstructed from the last state by the pseudo-inverse of "
        "V, and "
        "(real) by the pseudo-inverse of its real and imaginary parts. Right: mean square errors by position, over "
        f"{config.images} images and {config.draws} draws of the eigenvalues."
    )
    shown = cases(config)
    return [
        Figure(
            "digits",
            caption,
            [images.digit_rows(config, stages, title, shown), images.position_panel(config, stages, shown)],
        )
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check that the disk recovers only the recent past, and the ring everything."""
    (disk, ring), size = config.rings, config.sizes[0]
    far, near = (images.measured(stages, r, size) for r in (disk, ring))
    energy = images.seen(stages)["energy"]
    covered, whole = (images.reach(config, stages, found, "complex") for found in (far, near))
    lost = images.missing(energy, far, "complex")
    one, rows = directly(stages), float(near["mse"][0, 0])
    over = f"{config.images} images and {config.draws} draws"
    return [
        Claim(
            f"with eigenvalues on the whole disk only the recent past is reconstructed, N = {size}",
            "the lower half of the image",
            f"the last {covered} of {config.length} pixels with at most {config.lacking:.0%} of their energy "
            f"missing; {lost:.0%} of all energy is missing",
            rules.graded(config.is_recent(covered)),
            f"Mean square error {images.spread(far, 'complex')} over {over}; equations for real inputs reach "
            f"{images.reach(config, stages, far, 'real')} pixels.",
        ),
        Claim(
            f"with |λ| in ({ring:g}, 1) the whole image is reconstructed by V⁺, N = {size}",
            "the whole image",
            f"mean square error {images.spread(near, 'complex')} over {over}; the last {whole} pixels",
            rules.at_most(images.error(near, "complex"), config.perfect, 10 * config.perfect),
            f"{images.missing(energy, near, 'complex'):.1%} of the energy is missing: V has rank "
            f"{near['rank'][:, 0].min()} to {near['rank'][:, 0].max()} of {config.length} in double precision.",
        ),
        Claim(
            f"with |λ| in ({ring:g}, 1) the whole image is reconstructed by the equations for a real input, N = {size}",
            "not tried",
            f"mean square error {images.spread(near, 'real')} over {over}",
            rules.ours(rules.at_most(images.error(near, "real"), config.perfect, 10 * config.perfect)),
            "The real and imaginary parts of N complex states give 2N equations for L real pixels: with N = L there "
            "are "
            f"twice as many as needed, and the rank is at least {near['rank'][:, 1].min()} of {config.length}.",
        ),
        Claim(
            "errors from the triangular factor of all images equal errors computed image by image",
            "not in the paper",
            f"first draw: {rows:.6e} from the factor, {one:.6e} image by image",
            rules.ours(rules.graded(abs(rows - one) < config.alike * one + 1e-12)),
            "Reconstruction is linear, so only rounding can differ. All other numbers here come from the factor.",
        ),
    ]


EXPERIMENT = Experiment(
    id="lr-fig2",
    title="Digits from the last state: the disk and the ring",
    source="LRU-UA, figure 2",
    question="How much of an image can be reconstructed from the last state of a random linear recurrence?",
    claim="With eigenvalues on the whole disk only the lower half; with eigenvalues near the circle everything.",
    configs={
        "smoke": Config(data="synthetic", images=30, side=10, sizes=(100,), draws=2),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 1.5},
    run=run,
    figures=figures,
    claims=claims,
)

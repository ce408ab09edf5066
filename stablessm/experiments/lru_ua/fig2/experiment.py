"""Reconstructs digits from the last state of a linear recurrence. The eigenvalues of the recurrence lie anywhere in the
unit disk, or close to the unit circle.
"""

from __future__ import annotations

from dataclasses import dataclass

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.lru_ua import reconstructions as images


@dataclass(frozen=True)
class Config(images.DigitsConfig):
    """Settings of ``lr-fig2``: one state size N, and two regions for the random eigenvalues, the whole unit disk and a
    ring close to the unit circle.
    """

    sizes: tuple[int, ...] = (784,)
    rings: tuple[float, ...] = (0.0, 0.99)
    alike: float = 1e-2
    """Errors count as equal up to this relative difference."""


@stage("image-by-image")
def directly(config: Config, run: Run) -> dict[str, float]:
    """Reconstruct every image with the first draw of eigenvalues on the last ring of the settings, and return the mean
    square error. This number checks the errors of the other stages, which do not reconstruct every image but compute
    the errors from a matrix factorization of all images.
    """
    parts = images.differences(config, config.rings[-1], config.sizes[0])
    return {"mse": sum(float(part.square().sum()) for part in parts) / images.pixels(config).numel()}


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the reconstructed digits, and of the errors at each position in the sequence of pixels."""
    (size,) = config.sizes
    shown: dict[str, images.Case] = {
        f"r_min = {ring:g}{note}": (ring, size, solver)
        for solver, note in (("complex", ""), ("real", ", real"))
        for ring in config.rings
    }
    title = f"{config.length} pixels from {size} states"
    yield Figure(
        "digits",
        f"Images as sequences of {config.length} pixels, reconstructed from the last state by the pseudo-inverse of "
        "V, and (real) by the pseudo-inverse of its real and imaginary parts. Right: mean square errors by position, "
        f"over {config.images} images and {config.draws} draws of the eigenvalues.",
        [images.digit_rows(config, stages, title, shown), images.position_panel(config, stages, shown)],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: with eigenvalues in the whole unit disk, only the recent past of the input can
    be recovered; with eigenvalues on a ring close to the unit circle, the whole past can be recovered.
    """
    (disk, ring), size = config.rings, config.sizes[0]
    far, near = (images.measured(stages, r, size) for r in (disk, ring))
    covered, whole = (images.reach(config, stages, found, "complex") for found in (far, near))
    over = f"{config.images} images and {config.draws} draws"
    yield Claim(
        f"with eigenvalues on the whole disk only the recent past is reconstructed, N = {size}",
        "the lower half of the image",
        f"the last {covered} of {config.length} pixels with at most {config.lacking:.0%} of their energy missing; "
        f"{images.missing(stages, far, 'complex'):.0%} of all energy is missing",
        rules.graded(config.is_recent(covered)),
        f"Mean square error {images.spread(far, 'complex')} over {over}; equations for real inputs reach "
        f"{images.reach(config, stages, far, 'real')} pixels.",
    )
    yield Claim(
        f"with |λ| in ({ring:g}, 1) the whole image is reconstructed by V⁺, N = {size}",
        "the whole image",
        f"mean square error {images.spread(near, 'complex')} over {over}; the last {whole} pixels",
        rules.at_most(images.middle(near, "complex"), config.perfect, 10 * config.perfect),
        f"{images.missing(stages, near, 'complex'):.1%} of the energy is missing: V has rank "
        f"{near['rank'][:, 0].min()} to {near['rank'][:, 0].max()} of {config.length} in double precision.",
    )
    yield Claim(
        f"with |λ| in ({ring:g}, 1) the whole image is reconstructed by the equations for a real input, N = {size}",
        "not tried",
        f"mean square error {images.spread(near, 'real')} over {over}",
        rules.ours(rules.at_most(images.middle(near, "real"), config.perfect, 10 * config.perfect)),
        "The real and imaginary parts of N complex states give 2N equations for L real pixels: with N = L there are "
        f"twice as many as needed, and the rank is at least {near['rank'][:, 1].min()} of {config.length}.",
    )
    one, rows = float(directly(stages)["mse"]), float(near["mse"][0, 0])
    yield Claim(
        "errors from the triangular factor of all images equal errors computed image by image",
        "not in the paper",
        f"first draw: {rows:.6e} from the factor, {one:.6e} image by image",
        rules.ours(rules.graded(abs(rows - one) < config.alike * one + 1e-12)),
        "Reconstruction is linear, so only rounding can differ. All other numbers here come from the factor.",
    )


run = computing(images.measured, directly, images.seen)
SMOKE = Config(data="synthetic", images=30, side=10, sizes=(100,), draws=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 1.5))

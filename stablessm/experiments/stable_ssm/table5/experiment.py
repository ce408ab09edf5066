"""Trains classifiers of MNIST digits that read one pixel per step, with each map."""

from functools import partial

from stablessm.experiments.frame import described
from stablessm.experiments.stable_ssm.image_tables import SMOKE, ImageConfig, as_published, claims, figures, jobs, run

PUBLISHED = {"best": 99.3, "exp": 99.21, "softplus": 99.19, "direct": 10.09}
EXPERIMENT = described(
    __file__, run, figures, partial(claims, published=PUBLISHED), smoke=SMOKE, paper=ImageConfig(),
    large=ImageConfig(**as_published("mnist")), minutes=(0.1, 10000.0, 15.0), jobs=jobs,
)  # fmt: skip

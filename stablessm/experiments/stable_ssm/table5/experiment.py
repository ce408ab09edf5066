"""Sequential MNIST for each map."""

from __future__ import annotations

from stablessm.experiments.frame import Claim, Experiment, Run, Stages
from stablessm.experiments.stable_ssm import image_tables
from stablessm.experiments.stable_ssm.image_tables import SMOKE, ImageConfig

PUBLISHED = {"best": 99.3, "exp": 99.21, "softplus": 99.19, "direct": 10.09}


def run(config: ImageConfig, run: Run) -> None:
    """Train and score the models."""
    image_tables.run(config, run)


def claims(config: ImageConfig, stages: Stages) -> list[Claim]:
    """Compare the scores with table 5."""
    return image_tables.claims(config, stages, PUBLISHED)


EXPERIMENT = Experiment(
    id="st-table5",
    title="Sequential MNIST by map",
    source="StableSSM, table 5",
    question="Which parameterizations learn to read digits pixel by pixel, and at which learning rates?",
    claim="Stable maps do, best first (99.3 %); direct diverges.",
    configs={"smoke": SMOKE, "paper": ImageConfig()},
    minutes={"smoke": 0.1, "paper": 10000.0},
    run=run,
    figures=image_tables.figures,
    claims=claims,
    jobs=image_tables.jobs,
)

"""Sequential grayscale CIFAR-10 for each map, and the recommended preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.user_training import trained
from stablessm.experiments.stable_ssm import image_tables
from stablessm.experiments.stable_ssm.image_tables import SMOKE, SYNTHETIC, ImageConfig
from stablessm.models import for_task
from stablessm.report.figure import Figure, Panel, Series
from stablessm.training import TrainingConfig

PUBLISHED = {"best": 66.41, "exp": 65.87, "softplus": 65.84, "direct": 9.736}
STAGE = "recommended"


@dataclass(frozen=True)
class Recommended:
    """One model that a user would train."""

    preset: str = "images"
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=60,
            batch_size=128,
            lr=0.01,
            recurrent_lr=0.001,
            autocast=True,
            compile=True,
            graph=True,
            select="last",
        )
    )


@dataclass(frozen=True)
class Config(ImageConfig):
    """The table, and one larger model."""

    data: str = "cifar10-gray"
    recommended: Recommended = field(default_factory=Recommended)
    goal: float = 80.0
    """Accuracy in percent that a model with more than one layer should reach."""


def larger(config: Config, run: Run) -> None:
    """Return the larger model."""
    run.stage(STAGE, partial(recommended, config, run))


def jobs(config: Config) -> dict[str, Callable[[Run], object]]:
    """Return the jobs of the table and the job of the larger model."""
    return {**image_tables.jobs(config), STAGE: partial(larger, config)}


def run(config: Config, run: Run) -> None:
    """Train and score the table, then the larger model."""
    image_tables.run(config, run)
    larger(config, run)


def recommended(config: Config, run: Run) -> Mapping[str, np.ndarray]:
    """Train the preset with the public training loop, in a folder with its own checkpoints."""
    task, own = image_tables.loaded(config.data, config.valid), config.recommended
    torch.manual_seed(own.training.seed)
    model = for_task(task.inputs, task.outputs, own.preset)
    result = trained(model, task, own.training, run, STAGE)
    found = {split: np.array(scores["accuracy"]) for split, scores in result.scores.items()}
    parameters = np.array(sum(p.numel() for p in model.parameters()))
    return {"losses": result.losses, "parameters": parameters, **found}


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return the figures of table 5 and the training of the larger model."""
    losses = stages[STAGE]["losses"]
    curve = Series(config.recommended.preset, losses[:, 0].tolist(), losses[:, 1].tolist())
    panel = Panel("training loss", "step", "cross-entropy", [curve])
    return [
        *image_tables.figures(config, stages),
        Figure(STAGE, f"The preset {config.recommended.preset}, trained by stablessm.training.train.", [panel]),
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Compare the scores with table 6, and check the larger model."""
    found, own = stages[STAGE], config.recommended
    accuracy = 100 * float(found["test"]) if "test" in found else 0.0
    return [
        *image_tables.claims(config, stages, PUBLISHED),
        Claim(
            f"the recommended preset reaches {config.goal:g} % on {config.data}",
            "no number; the paper's model with one layer has 66.41 %",
            f"{accuracy:.2f} %, {int(found['parameters']):,} parameters" if "test" in found else "diverged",
            rules.ours(rules.graded(accuracy >= config.goal, accuracy >= PUBLISHED["best"])),
            f"Preset {own.preset}, {own.training.epochs} epochs at rate {own.training.lr:g} (recurrent "
            f"{own.training.recurrent_lr or own.training.lr:g}), one seed; test images.",
        ),
    ]


SMALL = Config(
    data=SYNTHETIC,
    preset=SMOKE.preset,
    grid=SMOKE.grid,
    deep=SMOKE.deep,
    layers=SMOKE.layers,
    training=SMOKE.training,
    recommended=Recommended("tiny", TrainingConfig(steps=20, batch_size=40, lr=0.01, device="cpu")),
)

EXPERIMENT = Experiment(
    id="st-table6",
    title="Sequential CIFAR-10 by map",
    source="StableSSM, table 6",
    question="Which parameterizations learn to classify gray photographs pixel by pixel, and at which learning rates?",
    claim="Stable maps do, best first (66.41 %, one layer); direct diverges.",
    configs={"smoke": SMALL, "paper": Config()},
    minutes={"smoke": 0.1, "paper": 10000.0},
    run=run,
    figures=figures,
    claims=claims,
    jobs=jobs,
)

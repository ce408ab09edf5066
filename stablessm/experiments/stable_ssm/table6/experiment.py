"""Trains classifiers of grayscale CIFAR-10 images that read one pixel per step, with each map, and one larger model
with the settings that this library recommends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, rules, stage
from stablessm.experiments.frame.user_training import trained
from stablessm.experiments.stable_ssm import image_tables
from stablessm.experiments.stable_ssm.image_tables import SMOKE, ImageConfig
from stablessm.models import for_task
from stablessm.report.figure import Figure, Panel, Series
from stablessm.training import TrainingConfig

PUBLISHED = {"best": 66.41, "exp": 65.87, "softplus": 65.84, "direct": 9.736}
STAGE = "recommended"


@dataclass(frozen=True)
class Recommended:
    """Settings of the larger model: its preset and training, as this library recommends them to users."""

    preset: str = "images"
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=60, batch_size=128, lr=0.01, recurrent_lr=0.001, autocast=True, compile=True, graph=True,
            select="last",
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Config(ImageConfig):
    """Settings of ``st-table6``: grids and training of the models of the table, and settings of one larger model."""

    data: str = "cifar10-gray"
    recommended: Recommended = field(default_factory=Recommended)
    goal: float = 80.0
    """Accuracy in percent that a model with more than one layer should reach."""


@stage(STAGE)
def recommended(config: Config, run: Run) -> Mapping[str, Any]:
    """Train the larger model with the public training loop. Return its losses, its accuracy on each split, and its
    number of parameters. The checkpoints are in a subfolder of the run folder.
    """
    task, own = image_tables.loaded(config.data, config.valid), config.recommended
    torch.manual_seed(own.training.seed)
    model = for_task(task.inputs, task.outputs, own.preset)
    result = trained(model, task, own.training, run, STAGE)
    found = {split: scores["accuracy"] for split, scores in result.scores.items()}
    return {"losses": result.losses, "parameters": sum(p.numel() for p in model.parameters()), **found}


def jobs(config: Config) -> dict[str, Callable[[Run], object]]:
    """Return the jobs that train the models of the table, and one job that trains the larger model."""
    return {**image_tables.jobs(config), **recommended.jobs(config)}


def run(config: Config, run: Run) -> None:
    """Train and score the models of the table, then the larger model."""
    image_tables.run(config, run)
    recommended.compute(config, run)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield figures of the accuracies and losses in the table, and of the training loss of the larger model."""
    yield from image_tables.figures(config, stages)
    preset, (steps, losses) = config.recommended.preset, recommended(stages)["losses"].T
    panel = Panel("training loss", "step", "cross-entropy", [Series(preset, steps, losses)])
    yield Figure(STAGE, f"The preset {preset}, trained by stablessm.training.train.", [panel])


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the accuracies in table 6 of StableSSM, and on the accuracy of the larger
    model.
    """
    yield from image_tables.claims(config, stages, PUBLISHED)
    found, own = recommended(stages), config.recommended
    accuracy = 100 * float(found["test"]) if "test" in found else 0.0
    yield Claim(
        f"the recommended preset reaches {config.goal:g} % on {config.data}",
        "no number; the paper's model with one layer has 66.41 %",
        f"{accuracy:.2f} %, {int(found['parameters']):,} parameters" if "test" in found else "diverged",
        rules.ours(rules.graded(accuracy >= config.goal, accuracy >= PUBLISHED["best"])),
        f"Preset {own.preset}, {own.training.epochs} epochs at rate {own.training.lr:g} (recurrent "
        f"{own.training.recurrent_lr or own.training.lr:g}), one seed; test images.",
    )


SMALL = Config(
    **vars(SMOKE), recommended=Recommended("tiny", TrainingConfig(steps=20, batch_size=40, lr=0.01, device="cpu"))
)

LARGE = Config(**image_tables.as_published("cifar10-gray"))
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMALL, paper=Config(), large=LARGE, minutes=(0.1, 10000.0, 25.0), jobs=jobs
)

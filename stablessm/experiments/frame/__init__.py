"""The parts that all experiments share: their definition, run folder and stages, and the rules of their verdicts."""

from stablessm.experiments.frame import rules
from stablessm.experiments.frame.base import Claim, Experiment, execute
from stablessm.experiments.frame.described import Claims, Figures, described
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stage import Stage, computing, kept, stage
from stablessm.experiments.frame.stages import Stages
from stablessm.report.figure import Figure, Panel, Series

__all__ = [
    "Claim", "Claims", "Experiment", "Figure", "Figures", "Panel", "Run", "Series", "Stage", "Stages", "computing",
    "described", "execute", "kept", "rules", "stage",
]  # fmt: skip

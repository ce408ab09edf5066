"""The framework of every experiment: its definition, its run folder, its stages and the rules of its verdicts."""

from stablessm.experiments.frame import rules
from stablessm.experiments.frame.base import Claim, Experiment, execute
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import Stages

__all__ = ["Claim", "Experiment", "Run", "Stages", "execute", "rules"]

"""Run experiments as parallel jobs, on this machine, on a Ray cluster or on Slurm, and search over their settings."""

from stablessm.sweeps.engine import Engine, Resources
from stablessm.sweeps.job import Job
from stablessm.sweeps.objectives import Objective, OfExperiment, OfTask
from stablessm.sweeps.processes import Processes
from stablessm.sweeps.ray_cluster import RayCluster
from stablessm.sweeps.search import Found, Range, search
from stablessm.sweeps.slurm import Slurm
from stablessm.sweeps.status import RunStatus, runs
from stablessm.sweeps.sweep import Swept, sweep

__all__ = [
    "Engine",
    "Found",
    "Job",
    "Objective",
    "OfExperiment",
    "OfTask",
    "Processes",
    "Range",
    "RayCluster",
    "Resources",
    "RunStatus",
    "Slurm",
    "Swept",
    "runs",
    "search",
    "sweep",
]

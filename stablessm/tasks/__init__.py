"""Tasks to train models on: data in batches, a loss, a metric, and the score of the best constant prediction."""

from stablessm.tasks.base import SPLITS, Batch, Inputs, Outputs, Split, Task
from stablessm.tasks.options import Options, option
from stablessm.tasks.registry import NAMES, TASKS, get, listing, read_options, register

__all__ = [
    "NAMES",
    "SPLITS",
    "TASKS",
    "Batch",
    "Inputs",
    "Options",
    "Outputs",
    "Split",
    "Task",
    "get",
    "listing",
    "option",
    "read_options",
    "register",
]

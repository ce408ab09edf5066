"""A task to learn an input-output map (a target) from its response to white noise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError, quoted
from stablessm.targets import TARGETS, Target
from stablessm.tasks import counter
from stablessm.tasks.base import Batch, Inputs, Outputs, Split
from stablessm.tasks.options import option
from stablessm.tasks.scoring import best_constant
from stablessm.tasks.synthetic import SyntheticOptions, SyntheticTask

_CHUNK = 2**20
"""Number of test targets that are computed at once."""


@final
@dataclass(frozen=True)
class FunctionalOptions(SyntheticOptions):
    """Options of the functional task: the target and the sizes. The defaults are the values in the code of the authors
    of IAT and StableSSM.
    """

    target: str | Target = option("polynomial", "a name of stablessm.targets.TARGETS, or a target")
    settings: Mapping[str, float] | None = option(None, "options of a target given by name, such as exponent=1.5")
    dt: float = option(1.0, "time between samples, for a target given by name")
    length: int = option(100, "number of steps of a sequence")
    precision: Literal["float32", "float64"] = option("float32", "dtype of inputs and targets")
    train_examples: int = option(128_000, "number of training examples")
    valid_examples: int = option(12_800, "number of validation examples")
    test_examples: int = option(12_800, "number of test examples")


@final
class Functional(SyntheticTask):
    """A task to learn a target H: the model predicts y = H(x) at each step from white noise x ~ N(0, 1).

    The task is from IAT (section 5) and StableSSM (section 4.1). The metric is the mean squared error over steps and
    channels; ``chance`` is the variance of the test targets.

    >>> from stablessm import targets, tasks
    >>> task = tasks.get("functional", target="polynomial", settings={"exponent": 1.5}, test_examples=4000)
    >>> batch = task.batch("test", 100)
    >>> torch.testing.assert_close(batch.targets, targets.LinearFunctional("polynomial", exponent=1.5)(batch.inputs))
    >>> batch.inputs.shape, round(task.chance, 1)
    (torch.Size([100, 100, 1]), 1.2)
    """

    options: FunctionalOptions
    metric = "mse"

    def __init__(self, options: FunctionalOptions, name: str = "functional") -> None:
        super().__init__(name, options)
        target = options.target
        if isinstance(target, str):
            if target not in TARGETS:
                raise ArgumentError("target", f"one of {', '.join(TARGETS)}, or a target", quoted(target))
            target = TARGETS[target](dt=options.dt, **(options.settings or {}))
        elif options.settings:
            raise ArgumentError("settings", "no value for a target that is not given by name", options.settings)
        self.target = target
        self.dtype = getattr(torch, options.precision)
        self.inputs = Inputs("values", target.d_input, whole_number("length", options.length))
        self.outputs = Outputs("values", target.d_output, per_step=True)

    @cached_property
    def chance(self) -> float:
        """Mean squared error of the best constant prediction: the variance of the test targets."""
        size = max(_CHUNK // self.inputs.length, 1)
        batches = [self.batch("test", size, index=i).targets for i in range(self.steps("test", size))]
        return best_constant("mse", torch.cat(batches).flatten(0, 1))

    def describe(self) -> dict[str, Any]:
        """Return a dictionary that identifies the task, with a full description of the target."""
        found = super().describe()
        target = re.sub(" at 0x[0-9a-f]+", "", repr(self.target))  # the address of a function changes every time
        return {**found, "options": {**found["options"], "target": target, "dt": self.target.dt}}

    def _made(self, split: Split, keys: Tensor) -> Batch:
        noise = counter.normals(keys, 0, self.inputs.length * self.inputs.size)
        inputs = noise.view(len(keys), self.inputs.length, self.inputs.size).to(self.dtype)
        return Batch(inputs, self.target(inputs))

"""A small task and models for the tests of training."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.tasks.base import Batch, Inputs, Outputs, Split, Task
from stablessm.training import TrainingConfig, train
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.ranks import Ranks
from stablessm.training.replayed import Replayed
from stablessm.training.steps import StepLoop
from stablessm.training.trainee import trainee, whole


class Sums(Task):
    """y[t] = 0.9 y[t-1] + x[t] of white noise; if ``padded`` some sequences are shorter."""

    def __init__(self, examples: int = 64, steps: int = 12, *, padded: bool = False, valid: int = 24) -> None:
        self.name = "sums"
        self.inputs, self.outputs = Inputs("values", 1, steps), Outputs("values", 1, per_step=True)
        self.metric = "mse"
        self.sizes = {"train": examples, "valid": valid, "test": 20}
        self.padded = padded
        generator = torch.Generator().manual_seed(0)
        self._tensors = {split: torch.randn(n, steps, 1, generator=generator) for split, n in self.sizes.items()}

    chance = 5.0

    def describe(self) -> dict[str, Any]:
        return {"task": self.name, "examples": self.sizes["train"], "steps": self.inputs.length}

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        x = self._tensors[split][indices]
        lengths = 1 + indices % x.shape[1] if self.padded else None
        return Batch(x, ssm.linear_scan(x.new_tensor([0.9]), x), lengths)


SCORED = ("sequences", "lengths", "weights")
"""What a loss is over: one target per sequence, all steps of sequences of random lengths, or steps with weights."""


class Ragged(Task):
    """Sums of white noise in float64, of random lengths and with random weights: some batches score few positions."""

    def __init__(self, seed: int, *, rows: int, kind: str = "values", scored: str = "lengths", steps: int = 7) -> None:
        self.name, self.metric = "ragged", "mse" if kind == "values" else "accuracy"
        size = 1 if kind == "values" else 3
        self.inputs, self.outputs = Inputs("values", 1, steps), Outputs(kind, size, per_step=scored != "sequences")
        self.sizes = {"train": rows, "valid": 0, "test": 0}
        chance = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, steps, 1, generator=chance, dtype=torch.float64)
        y = x.cumsum(1) if kind == "values" else torch.randint(0, size, (rows, steps), generator=chance)
        self._tensors = {"x": x, "y": y[:, -1] if scored == "sequences" else y}
        if scored != "sequences":
            self._tensors["lengths"] = torch.randint(1, steps + 1, (rows,), generator=chance)
        if scored == "weights":
            weights = torch.rand(rows, steps, generator=chance, dtype=torch.float64)
            weights[1::2] *= weights[1::2] > 0.8  # often none at all
            self._tensors["weights"] = weights
            self._tensors["weights"][0, 0] = 1.0

    chance = 1.0

    def describe(self) -> dict[str, Any]:
        return {"task": self.name}

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        own = {name: tensor[indices] for name, tensor in self._tensors.items()}
        return Batch(own["x"], own["y"], own.get("lengths"), own.get("weights"))


class Reader(nn.Module):
    """A recurrence in float64 whose outputs fit a :class:`Ragged` task."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.per_step = task.outputs.per_step
        self.layer, self.readout = ssm.RealSSM(1, 4, 4, dt=0.1), nn.Linear(4, task.outputs.size)
        self.double()

    def forward(self, x: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        y = self.readout(self.layer(x, lengths=lengths)[0])
        return y if self.per_step else y[:, -1]


def loss_and_gradient(seed: int, batch_size: int, accumulate: int, ranks: Ranks, **options: Any) -> list[float]:
    """The loss of one training step and its gradient, one number after the other."""
    task = Ragged(seed, rows=batch_size * accumulate, **options)
    config = TrainingConfig(batch_size=batch_size, accumulate=accumulate, seed=seed, device="cpu")
    torch.manual_seed(seed)
    trained = trainee(Reader(task), config, torch.device("cpu"), ranks)
    loss = Gradient(trained, task, config, 1, Watch(torch.device("cpu")), ranks).compute(0)
    return [loss.item(), *(x for p in trained.trained.parameters() for x in whole(p.grad).flatten().tolist())]


class Net(nn.Module):
    """A layer of ours in a module that is not, with dropout."""

    def __init__(self, *, map: str = "best", dropout: float = 0.2) -> None:
        super().__init__()
        self.layer = ssm.RealSSM(1, 8, 8, map=map, dt=0.1)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(8, 1)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return self.readout(self.dropout(self.layer(x, lengths=lengths)[0]))


class Slow(Sums):
    """Steps that take long enough to be killed in."""

    def batch(self, *args: Any, **options: Any) -> Batch:
        time.sleep(0.01)
        return super().batch(*args, **options)


def train_slowly(folder: str, options: dict[str, Any]) -> None:
    """A whole training, for a process that may be killed."""
    torch.manual_seed(0)
    carries = options.pop("carries", False)
    common = {"batch_size": 8, "lr": 0.02, "log_every": 7, "evaluate_every": 13, "checkpoint_every": 1, "device": "cpu"}
    model, task = (ssm.LanguageModel(257, d_model=8, d_state=4, dropout=0.1), text()) if carries else (Net(), Slow())
    train(model, task, TrainingConfig(**common, **options), folder, progress=False)


def text() -> Task:
    """A text whose states are carried on, as slow."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("to be or not to be, that is the question. " * 30)
        file.flush()
        task = ssm.tasks.get("lm", text=file.name, level="byte", length=8, carry=True)
    batches = task.batch

    def batch(*args: Any, **options: Any) -> Batch:
        time.sleep(0.01)
        return batches(*args, **options)

    task.batch = batch  # type: ignore[method-assign]
    return task


class Repeated:
    """Calls the function anew, on arguments that it keeps; its results are overwritten, as a graph's."""

    def __init__(self, function: Any, arguments: Any, state: Any, generator: Any = None) -> None:
        self.function, self.arguments = function, [argument.clone() for argument in arguments]
        before = [tensor.clone() for tensor in state]
        self.loss, self.gradients = function(*self.arguments)
        for tensor, kept in zip(state, before, strict=True):
            tensor.copy_(kept)

    fits = Replayed.fits

    def __call__(self, *arguments: Tensor) -> Any:
        for own, argument in zip(self.arguments, arguments, strict=True):
            own.copy_(argument)
        loss, gradients = self.function(*self.arguments)
        self.loss.copy_(loss)
        for own, new in zip(self.gradients, gradients, strict=True):
            if own is not None:
                own.copy_(new)
        return self.loss, self.gradients


@contextmanager
def stop_after(step: int) -> Iterator[None]:
    """Ask a run to stop when it has come so far."""

    def counted(self: StepLoop) -> None:
        if self.step == step:
            signal.raise_signal(signal.SIGINT)
        unchanged(self)

    unchanged = StepLoop._look
    with mock.patch.object(StepLoop, "_look", counted):
        yield


def nursery() -> None:
    """Fork a process that trains for every line of JSON that comes in: its pid, then how it ended, go out.

    Importing and compiling is done once, before.
    """
    torch.set_num_threads(1)
    for options in ({"steps": 2}, {"steps": 2, "carries": True}):
        with tempfile.TemporaryDirectory() as folder:
            train_slowly(folder, options)
    print("ready", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        child = os.fork()
        if not child:
            code = 1
            try:
                train_slowly(*arguments)
                code = 0
            finally:
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    nursery()

"""Random teachers, their students, and measurements of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Run
from stablessm.experiments.frame.training import Batch, Training, noise, rnn_mean_square, train
from stablessm.instruments import (
    memory_function,
    perturbation_error,
)
from stablessm.layers import ContinuousRNN
from stablessm.targets import TeacherRNN

DT = 0.1
TRAINING = Training(samples=6_400, batch=64, epochs=40, lr=0.005, graphed=True)
LONGEST, SHIFTS = (2.0, 200.0), (0.5, 2.5)
"""Ranges of the longest time scale of a teacher that settles, and of γ in W = G/√m - γ I, which is stable for γ > 1."""
TEST = 1
"""Seed of the test inputs."""


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment. The paper gives only the width of the teachers."""

    teachers: int = 60
    teacher_width: int = 256
    widths: tuple[int, ...] = (8, 16, 32, 64)
    length: int = 200
    """Length of training inputs, in steps of 0.1."""
    training: Training = TRAINING
    horizon: int = 400
    """Horizon of the errors, in steps."""
    radii: tuple[float, ...] = (0.0, *(1e-3 * 2.0**k for k in range(7)))
    draws: int = 3
    tolerance: float = 0.1
    """A teacher counts as approximated if the widest student's error is less than this part of its norm."""
    memory: int = 1024
    """Horizon of memory functions, in steps."""


def teacher(config: Config, i: int) -> ContinuousRNN:
    """Return a teacher: an even index gives one that settles, an odd index one with Gaussian weights."""
    rng = np.random.default_rng(i)
    if i % 2 == 0:
        longest = float(np.exp(rng.uniform(*np.log(LONGEST))))
        return TeacherRNN(config.teacher_width, seed=i, timescales=(1.0, longest), dt=DT).layer
    torch.manual_seed(i)
    layer = ContinuousRNN(1, config.teacher_width, 1, activation="tanh", dt=DT, bias=False).double()
    with torch.no_grad():
        layer.M.normal_(std=config.teacher_width**-0.5).diagonal().sub_(rng.uniform(*SHIFTS))
    return layer.requires_grad_(False)


def inputs(seed: int, rows: int, length: int) -> Tensor:
    """Return inputs (rows, length, 1): white noise around a random level."""
    return noise(seed, 0, rows, length, 1) + noise(seed, 1, rows, 1, 1)


def students(config: Config) -> list[ContinuousRNN]:
    """Return one student of each width for each teacher."""
    found = []
    for i in range(config.teachers):
        torch.manual_seed(i)
        found += [ContinuousRNN(1, m, 1, activation="tanh", dt=DT).double() for m in config.widths]
    return found


def trained(config: Config, run: Run) -> list[ContinuousRNN]:
    """Train all students of all teachers in one stack."""
    device, each = config.training.chosen_device(), len(config.widths)
    size = config.training.batch

    @cache
    def data() -> Batch:
        x = inputs(0, config.training.samples, config.length).to(device)
        return x, torch.stack([teacher(config, i).to(device)(x)[0] for i in range(config.teachers)])

    def batch(k: int) -> Batch:
        x, y = (tensor[..., k * size : (k + 1) * size, :, :] for tensor in data())
        return x.expand(each * config.teachers, *x.shape), y.repeat_interleave(each, 0)

    result = train(run, "training", students(config), rnn_mean_square, batch, config.training, each_its_own=True)
    return result.models


def perturbed(config: Config, run: Run) -> Mapping[str, np.ndarray]:
    """Measure E_m(β) of every student with all weights perturbed, and the norm of every teacher."""
    device, each = config.training.chosen_device(), len(config.widths)
    models = trained(config, run)
    x = torch.cat([inputs(TEST, 4, config.horizon), noise(TEST, 2, 4, 1, 1).expand(-1, config.horizon, -1)]).to(device)
    errors = np.full((len(models), len(config.radii)), np.nan)
    norms = np.full(config.teachers, np.nan)

    def measure(model: ContinuousRNN, i: int, radii: tuple[float, ...]) -> np.ndarray:
        return perturbation_error(
            model.to(device), teacher(config, i).to(device), radii, norm="sobolev", samples=config.draws,
            horizon=config.horizon, inputs=x, progress=False,
        ).lower  # fmt: skip

    def restore(arrays: Mapping[str, np.ndarray]) -> None:
        errors[:], norms[:] = arrays["errors"], arrays["norms"]

    silent = students(config)[0]
    torch.nn.init.zeros_(silent.C)
    for i in run.loop("perturbation", config.teachers, lambda: {"errors": errors, "norms": norms}, restore):
        norms[i] = measure(silent, i, (0.0,))[0]
        for j in range(i * each, (i + 1) * each):
            errors[j] = measure(models[j], i, config.radii)
    return {"errors": errors.reshape(config.teachers, each, -1), "norms": norms}


def remembered(config: Config) -> Mapping[str, np.ndarray]:
    """Return the memory function of every teacher."""
    device = config.training.chosen_device()
    curves = [
        memory_function(teacher(config, i).to(device), config.memory, samples=16, progress=False)
        for i in range(config.teachers)
    ]
    return {
        "time": curves[0].time,
        "value": np.stack([curve.value for curve in curves]),
        "floor": np.array([curve.floor for curve in curves]),
    }

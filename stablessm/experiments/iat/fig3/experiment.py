"""Measures the memory functions of random teacher RNNs, and tests which of these teachers smaller student RNNs
approximate stably.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Run, Series, Stages, described, rules
from stablessm.experiments.frame.families import of_errors
from stablessm.experiments.frame.training import Batch, Training, noise, rnn_mean_square, train
from stablessm.instruments import MemoryCurve, PerturbationFamily, memory_function, perturbation_error
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
    """Settings of ``ia-fig3``: teachers, students, training, perturbations and thresholds.

    The width of the teachers is the width in the paper; the paper gives none of the other values.
    """

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
    """A teacher counts as approximated if the widest student's error is less than this fraction of the teacher's
    norm."""
    memory: int = 1024
    """Horizon of memory functions, in steps."""


def teacher(config: Config, i: int) -> ContinuousRNN:
    """Return the random teacher RNN number ``i``. Teachers with even numbers are stable; teachers with odd numbers have
    Gaussian weights.
    """
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
    """Return input sequences (rows, length, 1): white noise plus a random constant for each sequence."""
    return noise(seed, 0, rows, length, 1) + noise(seed, 1, rows, 1, 1)


def students(config: Config) -> list[ContinuousRNN]:
    """Return the untrained students of all teachers in one list; each teacher has one student of each width."""
    found = []
    for i in range(config.teachers):
        torch.manual_seed(i)
        found += [ContinuousRNN(1, m, 1, activation="tanh", dt=DT).double() for m in config.widths]
    return found


def trained(config: Config, run: Run) -> list[ContinuousRNN]:
    """Train the students of all teachers as one computation, and return the trained students."""
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
    """Return two arrays: the perturbation errors E_m(β) of every student, (teachers, widths, radii), where all weights
    are perturbed; and the Sobolev norm of every teacher, (teachers,).
    """
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
    """Measure the memory functions of all teachers. Return three arrays: their common time axis (``time``), their
    values (``value``) and their rounding levels (``floor``).
    """
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


SHOWN = 6
"""Number of memory functions in a panel."""


def run(config: Config, run: Run) -> None:
    """Train the students, measure their perturbation errors, and measure the teachers' memory functions."""
    run.stage("perturbation", lambda: perturbed(config, run))
    run.stage("memory", lambda: remembered(config))


@dataclass(frozen=True)
class Judged:
    """The results for one teacher: the errors of its students, whether the students approximate the teacher stably, and
    the teacher's memory function.
    """

    index: int
    family: PerturbationFamily
    error: float
    """Error of the widest student, relative to the teacher's norm."""
    approximated: bool
    stable: bool
    memory: MemoryCurve

    @property
    def kind(self) -> str:
        """Return the kind of decay of the teacher's memory function."""
        return self.memory.decay().kind

    @property
    def survives(self) -> bool:
        """Return whether the students approximate the teacher, and do so stably. Figure 3 of IAT shows only teachers
        for which this is true.
        """
        return self.approximated and self.stable


def judged(config: Config, stages: Stages) -> Iterator[Judged]:
    """Combine the stored measurements into one result per teacher, and yield the results."""
    errors, norms, memory = stages["perturbation"]["errors"], stages["perturbation"]["norms"], stages["memory"]
    for i in range(config.teachers):
        family, error = of_errors(config.widths, config.radii, errors[i]), float(errors[i, -1, 0] / norms[i])
        held = MemoryCurve(memory["time"], memory["value"][i], floor=float(memory["floor"][i]))
        yield Judged(i, family, error, error < config.tolerance, family.verdict().stable is True, held)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure with up to three panels: the perturbation errors of the students of one teacher, the memory
    functions of teachers that students approximate stably, and the memory functions of other teachers.
    """
    teachers = sorted(judged(config, stages), key=lambda one: (not one.survives, one.kind == "exponential", one.error))
    curves = teachers[0].family.curves.items()
    errors = [Series(f"m = {m}", found.radius[1:], found.lower[1:], "both") for m, found in curves]
    panels = [Panel(f"students of teacher {teachers[0].index}", "β", "E_m(β), Sobolev norm", errors, "log", "log")]
    for title, chosen in (("pass the filter", True), ("do not", False)):
        group = [one for one in teachers if one.survives is chosen][:SHOWN]
        if group:
            lines = [line for one in group for line in drawn(one)]
            panels.append(Panel(f"teachers that {title}", "t", "M(t)", lines, y_scale="log"))
    yield Figure(
        "filter",
        "Left: perturbation error of the students of one teacher. Then memory functions of teachers that students "
        f"approximate stably and of others (at most {SHOWN}, not exponential ones first). Dashed: fitted decay.",
        panels,
    )


def drawn(teacher: Judged) -> list[Series]:
    """Return two lines for a figure: a teacher's memory function, and the decay that was fitted to it."""
    memory, fit = teacher.memory, teacher.memory.decay()
    time, name = memory.time[::8], f"teacher {teacher.index}"
    law = np.where(fit(time) > memory.value[memory.value > 0].min(initial=np.inf), fit(time), np.nan)
    return [Series(name, time, memory.value[::8], "solid", name), Series(fit.kind, time, law, "dashed", name)]


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: the memory of every teacher that is approximated stably decays
    exponentially.
    """
    teachers = list(judged(config, stages))
    alive, dead = ([one for one in teachers if one.survives is chosen] for chosen in (True, False))
    rates = [one.memory.decay().rate or np.nan for one in alive if one.kind == "exponential"]
    close = [one for one in teachers if one.approximated]
    yield Claim(
        "teachers that can be approximated stably have exponential memory",
        "figure 3: the only teachers that remain have exponentially decaying memory",
        f"of {len(teachers)} teachers {len(alive)} remain: {kinds(alive)}",
        rules.most_seen(Counter(one.kind for one in alive)),
        f"{len(close)} are approximated, {sum(one.stable for one in teachers)} stably, {len(alive)} both; their decay "
        f"rates are {min(rates, default=np.nan):.2g} to {max(rates, default=np.nan):.2g}. Memory of the {len(dead)} "
        f"other teachers: {kinds(dead)}. Memory of all approximated teachers, stably or not: {kinds(close)}.",
    )


def kinds(teachers: Iterable[Judged]) -> str:
    """Return the number of teachers of each kind of decay, as text."""
    counted = Counter(one.kind for one in teachers)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counted.items())) or "none"


SMOKE = Config(
    teachers=6, teacher_width=32, widths=(2, 4, 8), length=30,
    training=Training(samples=64, batch=16, epochs=5, lr=0.005, device="cpu"), horizon=40, radii=(0.0, 1e-3, 1e-2, 0.1),
    draws=2, memory=256,
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 240.0))

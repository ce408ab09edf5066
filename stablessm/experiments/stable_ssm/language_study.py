"""Trains language models with each map at each learning rate; shared by figures 4 to 6 and table 2 of StableSSM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.experiments.frame import Claims, Experiment, Figures, Panel, Series, Stage, Stages, described
from stablessm.experiments.frame.memories import panel
from stablessm.experiments.frame.run import Run, agree, settings
from stablessm.experiments.frame.stage import arrays
from stablessm.experiments.frame.training import device_called, differentiate
from stablessm.experiments.stable_ssm.language_stability import LIMITS, Instability, Limits, instability
from stablessm.experiments.stable_ssm.language_text import loaded
from stablessm.experiments.stable_ssm.language_training import LanguageTraining, fit, scores
from stablessm.experiments.stable_ssm.map_tables import SCHEMES as TABLES
from stablessm.instruments import MemoryCurve, gradient_over_weight, memory_function
from stablessm.instruments.modes import recurrent_modules
from stablessm.models import for_task
from stablessm.models.sequence_model import SequenceModel
from stablessm.tasks.base import Task
from stablessm.training.evaluate import apply

FAMILY = ("st-fig4", "st-fig5", "st-fig6", "st-table2")
"""Experiments with the same config, which reuse each other's training runs."""
SCHEMES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    **{name: TABLES[name] for name in ("direct", "relu", "exp", "softplus", "best-0.5", "best-1")},
    "tanh": ("tanh", {}),
}
"""Maps in discrete time, each from the same eigenvalues."""
PAPERS = "best-0.5"
"""The best map of the paper: λ = 1 - 1/(w² + 0.5)."""
POINTS = 300
"""Largest number of points of a training run in a figure."""


def check_maps(maps: Sequence[str]) -> None:
    """Raise an error unless all maps are names in ``SCHEMES``."""
    for name in maps:
        if name not in SCHEMES:
            raise ArgumentError("maps", f"some of {', '.join(SCHEMES)}", quoted(name))


@dataclass(frozen=True)
class StudyConfig:
    """Settings of the experiments on language models: text, model, maps, learning rates and training. Batch size,
    weight decay and the ratio of learning rates are as in StableSSM, appendix C.2.
    """

    text: str = "wikifa"
    """A text of the task ``lm``, or ``synthetic``: a Markov chain, for a quick test."""
    vocabulary: int = 8192
    length: int = 1024
    preset: str = "lm-small"
    timescales: tuple[float, ...] = (2.0, 1000.0)
    """The shortest and the longest initial time scale of every layer and map, in tokens."""
    maps: tuple[str, ...] = ("direct", "relu", "exp", "softplus", "best-0.5", "best-1")
    rates: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01)
    rate: float = 0.005
    """The learning rate of figures 4 and 5 and of table 2."""
    training: LanguageTraining = field(default_factory=lambda: LanguageTraining(steps=1200, graph=True))
    words: int = 8
    """Number of tokens whose repetition is measured."""
    horizon: int = 1024
    """Number of repetitions."""
    seed: int = 0
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        check_maps(self.maps)
        if len(self.timescales) != 2 or not 0 < self.timescales[0] <= self.timescales[1]:
            raise ArgumentError("timescales", "the shortest and the longest, above 0", self.timescales)

    def task(self) -> Task:
        """Return the task ``lm`` with the text that these settings name."""
        return loaded(self.text, self.vocabulary, self.length)


SMOKE = StudyConfig(
    text="synthetic", vocabulary=16, length=24, preset="lm-tiny", timescales=(2.0, 20.0),
    maps=("direct", "relu", "exp", "best-0.5"), rates=(0.005, 0.05),
    training=LanguageTraining(steps=12, batch=8, warmup=4, look_every=4, scored=2, autocast=False, device="cpu"),
    words=2, horizon=24,
)  # fmt: skip
"""The smoke size, which takes seconds on a CPU."""


def start(
    task: Task, preset: str, scheme: str, seed: int, timescales: Sequence[float], device: torch.device, **changes: Any
) -> SequenceModel:
    """Return an untrained model with the map ``scheme`` on a device. All maps give the same initial eigenvalues, so
    that for a given seed the untrained models of all maps compute the same function up to rounding. ``changes`` replace
    values of the preset.
    """
    map, options = SCHEMES[scheme]
    torch.manual_seed(seed)
    with device:
        model = for_task(
            task.inputs, task.outputs, preset, map=map, map_options=options, mixer="hyena-real", dropout=0.0,
            mixer_options={"time": "discrete", "timescales": list(timescales)}, **changes,
        )  # fmt: skip
    return model.to(device)


def shared(run: Run, name: str, compute: Callable[[], Mapping[str, Any]]) -> None:
    """Copy a stage from the run folder of a related experiment that has computed this stage with the same settings. If
    there is no such folder, compute the stage.
    """
    for id in FAMILY:
        folder = run.folder.parent.parent / id / run.folder.name
        if name not in run and (folder / f"{name}.npz").exists() and agree(settings(folder), run.config):
            run.adopt(name, folder)
    run.stage(name, compute)


def _cell(config: StudyConfig, run: Run, scheme: str, rate: float) -> dict[str, Any]:
    """Train a language model with one map and learning rate, and return its results: the arrays of
    ``language_training.fit``, the losses ``train`` and ``test`` in nats per token, the ``eigenvalues`` (layers,
    states), and the memory function (the arrays of :func:`remembered`).
    """
    task, options = config.task(), config.training
    model = start(task, config.preset, scheme, config.seed, config.timescales, device_called(options.device))
    found = fit(model, task, options, rate, config.seed, run=run, stage=cell.name(scheme, rate))
    memory = remembered(model, task, config.words, config.horizon, found)
    return {**found, **scores(model, task, options, found), **memory, **_spectrum(model)}


def _beginning(config: StudyConfig, run: Run, scheme: str) -> Mapping[str, np.ndarray]:
    """Return two arrays (layers, states) for an untrained model: ``ratio``, the ratio |gradient| / |weight| of each
    recurrent weight, and ``bound``, the ratio G(w)/|w| (gradient scale over weight) that bounds it up to a constant.
    """
    task, device = config.task(), device_called(config.training.device)
    model = start(task, config.preset, scheme, config.seed, config.timescales, device)
    batch = task.to(device).batch("train", config.training.batch, seed=config.seed)
    differentiate(task.loss(apply(model, batch), batch), model)
    found = gradient_over_weight(model, recurrent_only=True).parameters.values()
    return {
        "ratio": np.stack([entry.ratio.cpu().numpy() for entry in found if entry.ratio is not None]),
        "bound": np.stack([entry.predicted.cpu().numpy() for entry in found if entry.predicted is not None]),
        **_spectrum(model),
    }


cell = Stage(_cell, "training-{scheme}-{rate:g}", None, shared, arrays)
beginning = Stage(_beginning, "start-{scheme}", None, shared, arrays)


def at(config: StudyConfig, stages: Stages, rate: float) -> dict[str, Mapping[str, np.ndarray]]:
    """Return a dict from each map to the results of the training run with this map at one learning rate."""
    return {scheme: cell(stages, scheme, rate) for scheme in config.maps}


def experiment(
    file: str,
    figures: Callable[[StudyConfig, Stages], Figures],
    claims: Callable[[StudyConfig, Stages], Claims],
    minutes: float,
    *,
    rates: Callable[[StudyConfig], Sequence[float]] = lambda config: (config.rate,),
    untrained: Callable[[StudyConfig], Sequence[str]] = lambda config: (),
    large: tuple[StudyConfig, float] | None = None,
) -> Experiment[StudyConfig]:
    """Return an experiment on language models: it trains and measures one model for each learning rate and map, in one
    job each. ``file``, ``figures`` and ``claims`` are as in :func:`.described`.

    Args:
        minutes: Minutes that the size ``paper`` takes on two cores.
        rates: Function from the settings to the learning rates (default: the one rate ``config.rate``).
        untrained: Function from the settings to the maps with which also the gradient-to-weight ratios of untrained
            models are measured (default: none).
        large: Settings of the size ``large``, and the minutes that this size takes on a GPU.
    """

    def jobs(config: StudyConfig) -> dict[str, Callable[[Run], object]]:
        cells = [(scheme, rate) for rate in rates(config) for scheme in config.maps]
        return {f"{scheme}-{rate:g}": cell.job(config, scheme, rate) for scheme, rate in cells}

    def run(config: StudyConfig, run: Run) -> None:
        for scheme in untrained(config):
            beginning.compute(config, run, scheme)
        for job in jobs(config).values():
            job(run)

    larger, its_minutes = (None, ()) if large is None else (large[0], large[1:])
    times = (0.1, minutes, *its_minutes)
    return described(
        file, run, figures, claims, smoke=SMOKE, paper=StudyConfig(), large=larger, minutes=times, jobs=jobs
    )


def unrest(config: StudyConfig, cells: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Instability]:
    """Return a dict from each map to the instability of the training run with this map. ``cells`` has the results of
    the training runs.
    """
    return {scheme: instability(found, config.training.warmup, config.limits) for scheme, found in cells.items()}


def memory(found: Mapping[str, np.ndarray]) -> MemoryCurve | None:
    """Return the memory function among the results of a training run. Return None if the output of the trained model
    was not finite.
    """
    value = found["memory"]
    if not np.isfinite(value).all():
        return None
    return MemoryCurve(np.arange(len(value)) * 1.0, value, unit="tokens", floor=float(found["floor"]), dt=1.0)


def losses(title: str, cells: Mapping[str, Mapping[str, np.ndarray]]) -> Panel:
    """Return a panel of training losses, averaged over a few steps, from the results of the training run with each map
    (``cells``). The line of a training run that diverged ends early.
    """
    lines = [Series(scheme, *thinned(found["losses"])) for scheme, found in cells.items()]
    return Panel(title, "step", "cross-entropy [nats]", lines)


def memories(title: str, cells: Mapping[str, Mapping[str, np.ndarray]]) -> Panel:
    """Return a panel of the memory functions of the trained models, from the results of the training run with each map
    (``cells``). Models whose output was not finite are left out.
    """
    curves = {scheme: curve for scheme, found in cells.items() if (curve := memory(found)) is not None}
    return panel(title, curves, "tokens", "log")


def thinned(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Average the values, one per step, over intervals of equal length, of which there are at most ``POINTS``. Return
    the first step of each interval, and the mean of each interval.

    >>> thinned(np.arange(4.0)), thinned(np.arange(600.0))[1][:2]
    (([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]), [0.5, 2.5])
    """
    width = -(-len(values) // POINTS) or 1
    parts = [values[first : first + width] for first in range(0, len(values), width)]
    return [float(i * width) for i in range(len(parts))], [float(part.mean()) for part in parts]


def remembered(
    model: SequenceModel, task: Task, words: int, horizon: int, found: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return the memory function ``memory`` (horizon,) and its rounding level ``floor``. The value at t is the largest
    change of the output when a token that has been repeated t times is repeated once more, over the first ``words``
    different tokens of the test text.

    Both results are NaN if the output of the model is not finite. Both are also NaN if the training run diverged, as
    ``found`` (the result of ``language_training.fit``) says, and two evaluations of the model differ by more than
    rounding.
    """
    text = task.batch("test", 1).inputs[0].tolist()
    tokens = list(dict.fromkeys(text))[:words]
    try:
        curve = memory_function(model.eval(), horizon, tokens=tokens, prefix=text[:1], progress=False)
    except (NumericalError, ArgumentError) as error:
        if isinstance(error, ArgumentError) and int(found["diverged"]) < 0:
            raise
        return {"memory": np.full(horizon, np.nan), "floor": np.nan}
    return {"memory": curve.value, "floor": curve.floor}


@torch.no_grad()
def _spectrum(model: SequenceModel) -> Mapping[str, np.ndarray]:
    return {"eigenvalues": np.stack([layer.eigenvalues().cpu().numpy() for _, layer in recurrent_modules(model)])}

"""Forecasts of an hourly series by a fixed random recurrence and a small MLP, compared with two naive forecasts.

In the shapes below, T is the number of hours of the series, H the forecast horizon in hours, 7 the number of channels,
and N the number of complex states of the recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.memories import seeded
from stablessm.experiments.frame.training import Training, sliced, train
from stablessm.experiments.frame.words import each
from stablessm.models.linear_rnn_mlp import LinearRNNMLP, PointwiseMLP
from stablessm.report.figure import Figure, Panel, Series
from stablessm.tasks import forecasting, sources
from stablessm.tasks.forecasting import CHANNELS, FILE

Source: TypeAlias = Literal["etth1", "synthetic"]
DAY = 24


def hourly(source: Source, hours: int) -> np.ndarray:
    """Return the seven channels of the series over its first ``hours`` hours, (hours, 7).

    ``etth1``: electricity transformer temperature and loads, from the folder that the environment variable
    STABLESSM_DATA names. ``synthetic``: daily and weekly waves with noise that lasts some hours.

    >>> hourly("synthetic", 100).shape
    (100, 7)
    """
    one_of("data", source, get_args(Source))
    if source == "synthetic":
        return _made_up(hours)
    if sources.find(FILE) is None:
        raise ArgumentError(sources.VARIABLE, f"a folder with {FILE}", "no such variable")
    _, found = forecasting.read()
    if len(found) < hours:
        raise ArgumentError(FILE, f"{hours} rows or more", len(found))
    return found[:hours]


def _made_up(hours: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    t, phase = np.arange(hours)[:, None], rng.uniform(0, 2 * np.pi, CHANNELS)
    noise = rng.standard_normal((hours, CHANNELS))
    for k in range(1, hours):
        noise[k] = 0.8 * noise[k - 1] + 0.3 * noise[k]
    return np.asarray(np.sin(2 * np.pi * t / DAY + phase) + 0.5 * np.cos(2 * np.pi * t / (7 * DAY) + phase) + noise)


TRAINING = Training(samples=8448, batch=128, epochs=1, lr=1e-3)
NAIVE = {"last": "the last value", "yesterday": "the same hour of the day before"}
WAYS = NAIVE | {"mlp": "recurrence and MLP", "linear": "recurrence and linear readout"}
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Config:
    """Settings of ``ext-ett``: data and splits, forecast horizon, sizes of the recurrence and of the MLPs, and
    training.
    """

    data: Source = "etth1"
    parts: tuple[int, int, int] = (8640, 2880, 2880)
    """Hours of the training, validation and test splits, as is usual for ETTh1."""
    horizon: int = 24
    """Number of hours to forecast."""
    d_state: int = 128
    r_min: float = 0.97
    r_max: float = 0.9999
    hidden: tuple[int, ...] = (128,)
    models: int = 4
    """Number of MLPs, with different seeds; their mean is the forecast."""
    epochs: tuple[int, ...] = (1, 2, 4)
    """Numbers of training epochs; the number with the smallest validation error is used."""
    training: Training = TRAINING


@cache
def windows(config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Return three tensors. The first is the standardized series of T hours, (T, 7). The second has, for each hour, the
    values of the following H hours, (T - H, H, 7); H is the forecast horizon. The third has, for each of these
    following hours, the last known value at the same hour of the day, (T - H, H, 7).
    """
    raw = hourly(config.data, sum(config.parts))
    first = raw[: config.parts[0]]
    x = torch.from_numpy((raw - first.mean(0)) / first.std(0)).float()
    known = len(x) - config.horizon
    ahead = torch.stack([x[h : known + h] for h in range(1, config.horizon + 1)], 1)
    padded = torch.cat([x[:1].expand(DAY, -1), x])
    before = torch.stack([padded[1 + h % DAY :][:known] for h in range(config.horizon)], 1)
    return x, ahead, before


def part(config: Config, number: int) -> slice:
    """Return the range of the hours at which the forecasts of a split start. ``number`` selects the split: 0 is
    training, 1 is validation, and 2 is test. The range omits the first week of the training split.
    """
    start = sum(config.parts[:number])
    return slice(start if number else 7 * DAY, start + config.parts[number] - config.horizon)


def states(config: Config) -> tuple[LinearRNNMLP, Tensor]:
    """Return a model with a fixed random recurrence of N complex states, and the states of this recurrence over the
    series of T hours in float64, (T - H, 2 N). The last H hours, the forecast horizon, are left out.
    """
    x, _, _ = windows(config)
    model = seeded(
        0,
        lambda: LinearRNNMLP(
            CHANNELS, config.d_state, config.horizon * CHANNELS,
            hidden=config.hidden, r_min=config.r_min, r_max=config.r_max, clock=False,
        ),
    )  # fmt: skip
    with torch.no_grad():
        features = model.features(x[None].double())[0]
    model.mlp.inputs.set(features[: config.parts[0]])
    return model, features[: len(x) - config.horizon]


def correction(config: Config) -> Tensor:
    """Return the training targets of the readouts, (T - H, 7 H). A target is a correction: the values of the next H
    hours minus the values of the same hours one day earlier.
    """
    _, ahead, before = windows(config)
    return (ahead - before).flatten(1)


def trained(config: Config, run: Run, epochs: int) -> list[PointwiseMLP]:
    """Train one MLP per seed for this number of epochs, and return the MLPs. The input of an MLP is a state of the
    recurrence; its target is the correction that :func:`correction` returns.
    """
    model, features = states(config)
    chosen = part(config, 0)
    order = torch.from_numpy(np.random.default_rng(0).permutation(chosen.stop - chosen.start)) + chosen.start
    x, y = features.float(), correction(config)

    def start(seed: int) -> PointwiseMLP:
        mlp = seeded(seed, partial(PointwiseMLP, 2 * config.d_state, config.hidden, y.shape[1])).float()
        mlp.inputs.load_state_dict(model.mlp.inputs.state_dict())
        return mlp

    options, starts = replace(config.training, epochs=epochs), [start(seed) for seed in range(config.models)]
    return train(run, f"training-{epochs}", starts, loss, sliced(options, x[order], y[order]), options).models


def loss(mlp: PointwiseMLP, features: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error of the MLP's outputs for the inputs ``features``; ``y`` are the correct outputs."""
    return (mlp(features) - y).square().mean()


def corrected_by_mlp(config: Config, run: Run) -> dict[str, Tensor]:
    """Return a dict from each number of training epochs (as text) to the corrections (T - H, 7 H) that MLPs predict
    after this training. The predictions are means over the seeds. :func:`correction` explains what a correction is.
    """
    found, features = {}, states(config)[1].float()
    for epochs in config.epochs:
        mlps = trained(config, run, epochs)
        with torch.no_grad():
            found[f"{epochs} epochs"] = torch.stack([mlp(features) for mlp in mlps]).mean(0)
    return found


def corrected_linearly(config: Config) -> dict[str, Tensor]:
    """Return a dict from each ridge parameter (as text) to the corrections (T - H, 7 H) that a linear readout predicts.
    :func:`correction` explains what a correction is.
    """
    model, features = states(config)
    z = model.mlp.inputs(features)
    A, rows = torch.cat([z, torch.ones_like(z[:, :1])], 1), part(config, 0)
    square, right = A[rows].mT @ A[rows], A[rows].mT @ correction(config)[rows].double()
    unit = (rows.stop - rows.start) * torch.eye(len(square), dtype=square.dtype)
    return {f"ridge {ridge:g}": (A @ torch.linalg.solve(square + ridge * unit, right)).float() for ridge in RIDGES}


def forecast(config: Config, run: Run, way: str) -> tuple[Tensor, str]:
    """Return the forecasts (T - H, H, 7) of a method, and, as text, the setting of the method that has the smallest
    validation error.

    ``way`` is the method. ``last`` repeats the last value, and ``yesterday`` repeats the values of one day earlier;
    both have no setting. ``mlp`` is the MLP, whose setting is the number of epochs. ``linear`` is the linear readout,
    whose setting is the ridge parameter.
    """
    x, ahead, before = windows(config)
    if way == "last":
        return x[: len(ahead), None].expand_as(ahead), "nothing"
    if way == "yesterday":
        return before, "nothing"
    found = corrected_by_mlp(config, run) if way == "mlp" else corrected_linearly(config)
    errors = {key: float((y - correction(config))[part(config, 1)].square().mean()) for key, y in found.items()}
    best = min(errors, key=lambda key: errors[key])
    return before + found[best].unflatten(1, ahead.shape[1:]), best


@stage("errors-{way}", over=lambda config: WAYS)
def errors(config: Config, run: Run, way: str) -> Mapping[str, Any]:
    """Measure a method (``way``, as in :func:`forecast`) on the test split, and return a dict. ``square`` and
    ``absolute`` are the mean square and the mean absolute error for each number of hours ahead. ``shown`` is an example
    forecast, and ``true`` has the correct values. ``chosen`` is the setting that :func:`forecast` chose.
    """
    y, chosen = forecast(config, run, way)
    (_, ahead, _), test = windows(config), part(config, 2)
    off, middle = (y - ahead)[test].double(), (test.start + test.stop) // 2
    return {
        "square": off.square().mean((0, 2)), "absolute": off.abs().mean((0, 2)), "shown": y[middle, :, -1],
        "true": ahead[middle, :, -1], "chosen": chosen,
    }  # fmt: skip


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the forecast errors against the number of hours ahead, and of one example forecast."""
    hours, found = range(1, config.horizon + 1), errors.all(config, stages)
    drawn, shown = (lines(hours, {WAYS[way]: one[key] for way, one in found.items()}) for key in ("square", "shown"))
    shown.append(Series("what came", hours, found["last"]["true"], "dashed"))
    yield Figure(
        "forecasts",
        f"Forecasts of {CHANNELS} hourly channels ({config.data}) over the test months, in deviations of the training "
        "months. Right: the last channel from one hour on.",
        [
            Panel("error", "hours ahead", "mean square error", drawn),
            Panel("one forecast", "hours ahead", "deviations", shown),
        ],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, that compare the MLP with the naive forecasts and with a linear readout."""
    found = errors.all(config, stages)
    square, absolute = ({way: float(one[key].mean()) for way, one in found.items()} for key in ("square", "absolute"))
    naive = min(square[way] for way in NAIVE)
    rows = ((label, square[way], absolute[way]) for way, label in WAYS.items())
    yield Claim(
        f"a fixed random recurrence and an MLP forecast the next {config.horizon} hours better than naive forecasts",
        "not in the papers",
        f"mean square errors, {each('{}: {:.3f} (absolute {:.3f})', rows, '; ')}",
        rules.ours(rules.graded(square["mlp"] < naive)),
        f"{square['mlp'] / naive:.0%} of the error of the better naive forecast. The MLP is the mean of "
        f"{config.models}, with {found['mlp']['chosen'].item()} chosen on the months before the test months; the "
        "recurrence is fixed.",
    )
    yield Claim(
        "the MLP is better than a linear readout of the same states",
        "the MLP computes (LRU-UA, section 4)",
        f"mean square error {square['mlp']:.3f} against {square['linear']:.3f}",
        rules.graded(square["mlp"] < square["linear"]),
        f"{config.parts[0]} training hours; {found['linear']['chosen'].item()} was chosen for the readout.",
    )


run = computing(errors)
SMOKE = Config(
    data="synthetic", parts=(600, 200, 200), d_state=16, hidden=(16,), models=2, epochs=(1, 4),
    training=Training(samples=384, batch=64, epochs=1, lr=3e-3, device="cpu"),
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 1.0))

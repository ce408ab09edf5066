"""Trains an MLP on the states of a fixed random linear recurrence. The target is the output of a Lotka–Volterra system
that is driven by the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.memories import POINTS, seeded
from stablessm.experiments.frame.training import Batch, Training, sliced, train
from stablessm.models.linear_rnn_mlp import LinearRNNMLP, PointwiseMLP
from stablessm.reconstruction import fourier
from stablessm.report.figure import Figure, Panel, Series, Style
from stablessm.targets import LotkaVolterra

TARGET = LotkaVolterra()
WAYS = {"fixed": "fixed recurrence, trained MLP", "end-to-end": "all weights trained further"}
CONTROLS = {"linear": "linear readout of the same states", "mean": "mean trajectory, input ignored"}
FIXED = Training(samples=716 * 2048, batch=8192, epochs=60, lr=6e-3)
END_TO_END = Training(samples=716, batch=4, epochs=15, lr=1e-4)
ALIKE = 0.1
"""Errors count as equal up to this relative difference."""
SHOWN = 3


@dataclass(frozen=True)
class Config:
    """Settings of ``lr-fig9``: data, model sizes and training. Where LRU-UA, appendix E.3 gives a value, this value is
    the default.
    """

    length: int = 2048
    trajectories: int = 1024
    share: float = 0.7
    """Fraction of the trajectories that are used for training."""
    mean: float = 0.5
    """Mean of an input."""
    d_state: int = 128
    hidden: tuple[int, ...] = (512, 512)
    r_min: float = 0.99
    fixed: Training = FIXED
    """Training of the MLP; samples are time steps."""
    end_to_end: Training = END_TO_END
    """Further training of all weights; samples are trajectories."""
    slower: float = 3e-3
    """Learning rate of the recurrence relative to the learning rate of the MLP."""
    seed: int = 0
    negligible: float = 0.02
    """The output of a step counts as right if its relative error is below this value."""
    good: float = 0.9
    """Outputs count as right if at least this fraction of the steps is right."""
    fair: float = 0.5
    """Outputs count as partly right if at least this fraction of the steps is right."""


@cache
def trajectories(config: Config) -> tuple[Tensor, Tensor]:
    """Return inputs (trajectories, length, 1) and outputs (trajectories, length, 2) of the Lotka–Volterra system, in
    float64.

    An input is u_k = mean + α₁ cos(2πk/L) + α₂ sin(2πk/L), where (α₁, α₂) is random and uniform in the disk of radius
    ``mean``. Inputs fluctuate around a positive mean, because an input that is negative for long makes the number of
    predators negative and lets the number of prey explode.
    """
    draws = np.random.default_rng(config.seed).random((config.trajectories, 2))
    alpha = config.mean * np.sqrt(draws[:, 0]) * np.exp(2j * np.pi * draws[:, 1])
    waves = fourier(config.length, [1, 2]) * (config.length / 2) ** 0.5
    u = config.mean + torch.from_numpy(np.stack([alpha.real, alpha.imag], 1)) @ waves.mT
    return u[..., None], TARGET(u[..., None])


def split(config: Config) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split the trajectories into training and held-out trajectories, and return both in float32."""
    u, y = (tensor.float() for tensor in trajectories(config))
    cut = int(config.share * len(u))
    return (u[:cut], y[:cut]), (u[cut:], y[cut:])


def start(config: Config) -> LinearRNNMLP:
    """Return an untrained model. It standardizes its inputs and outputs with the mean and standard deviation over the
    training trajectories.
    """
    model = seeded(
        config.seed, lambda: LinearRNNMLP(1, config.d_state, 2, hidden=config.hidden, r_min=config.r_min)
    ).float()
    model.set_units(*split(config)[0])
    return model


def relative(found: Tensor, y: Tensor) -> Tensor:
    """Return the relative error |ŷ - y| / |y| at every step, where ŷ is ``found``. The outputs have the shape (…, 2),
    the errors (…,).
    """
    return torch.linalg.vector_norm(found - y, dim=-1) / torch.linalg.vector_norm(y, dim=-1)


def trained(config: Config, run: Run, way: str) -> LinearRNNMLP:
    """Return the trained model. First only the MLP is trained, with a fixed recurrence; ``way="fixed"`` stops there.
    Otherwise all weights are then trained further.
    """
    (u, y), model = split(config)[0], start(config)

    @cache
    def steps() -> Batch:
        """Return states and correct outputs at all steps of all training trajectories, in random order."""
        device = config.fixed.chosen_device()
        with torch.no_grad():
            parts = [model.to(device).features(part) for part in u.to(device).split(64)]
        order = torch.from_numpy(np.random.default_rng(config.seed).permutation(y.shape[0] * y.shape[1])).to(device)
        return torch.cat(parts).flatten(0, 1)[order], y.to(device).flatten(0, 1)[order]

    def some_steps(k: int) -> Batch:
        return sliced(config.fixed, *steps())(k)

    def loss_of_mlp(mlp: PointwiseMLP, features: Tensor, y: Tensor) -> Tensor:
        return relative(mlp(features), y).square().mean()

    def loss_of_model(moved: LinearRNNMLP, u: Tensor, y: Tensor) -> Tensor:
        found, _ = functional_call(moved, slowly(model, moved, config.slower), (u,))
        return relative(found, y).square().mean()

    model.mlp = train(run, "fixed", [model.mlp], loss_of_mlp, some_steps, config.fixed).models[0]
    model = model.cpu()
    if way == "fixed":
        return model
    moved = train(run, way, [model], loss_of_model, sliced(config.end_to_end, u, y), config.end_to_end).models[0]
    moved.load_state_dict(slowly(model, moved, config.slower), strict=False)
    return moved


def slowly(start: LinearRNNMLP, moved: LinearRNNMLP, part: float) -> dict[str, Tensor]:
    """Return the weights of the model ``moved``, with one change: the recurrent weights are only the fraction ``part``
    of the way from ``start`` to ``moved``.

    Training through this function reduces the learning rate of the recurrence by the factor ``part``. The recurrence
    requires a smaller rate because the power λ^k multiplies a change of the phase of λ by k.
    """
    weights: dict[str, Tensor] = dict(moved.named_parameters())
    for name, w in start.recurrence.named_parameters(prefix="recurrence"):
        weights[name] = w.detach().to(weights[name]).lerp(weights[name], part)
    return weights


def predicted(config: Config, run: Run, way: str, u: Tensor) -> Tensor:
    """Predict the outputs for the held-out inputs u, and return the predictions. ``way`` is the method of prediction: a
    model of which only the MLP was trained (``fixed``), a model of which all weights were trained (``end-to-end``), a
    linear readout (``linear``), or the mean trajectory (``mean``).
    """
    if way in WAYS:
        device = config.fixed.chosen_device()
        model = trained(config, run, way).to(device)
        with torch.no_grad():
            return torch.cat([model(part)[0].cpu() for part in u.to(device).split(64)])
    seen, y = split(config)[0]
    if way == "mean":
        return y.mean(0).expand(len(u), -1, -1)
    model = start(config)
    some = slice(None, None, max(1, len(seen) // 128))  # a linear map needs no more trajectories

    @torch.no_grad()
    def features(u: Tensor) -> Tensor:
        z = model.mlp.inputs(model.features(u)).double()
        return torch.cat([z, torch.ones_like(z[..., :1])], -1).flatten(0, 1)

    A, b = features(seen[some]), y[some].double().flatten(0, 1)
    ridge = 1e-9 * len(A) * torch.eye(A.shape[1], dtype=A.dtype)
    weights = torch.linalg.solve(A.mT @ A + ridge, A.mT @ b)
    return torch.cat([(features(part) @ weights).float() for part in u.split(64)]).unflatten(0, u.shape[:2])


@stage("errors-{way}", over=lambda config: (*WAYS, *CONTROLS))
def errors(config: Config, run: Run, way: str) -> Mapping[str, Any]:
    """Return statistics of the relative error |ŷ - y| / |y|, where ŷ is the prediction of y. For every step: the
    median, the ninth decile and the fraction of small errors over the held-out trajectories. Also return the largest
    error and some example trajectories.
    """
    u, y = split(config)[1]
    found = predicted(config, run, way, u)
    off = relative(found, y).double().numpy()
    median, decile = np.quantile(off, [0.5, 0.9], axis=0)
    shares = {"median": median, "ninth decile": decile, "share": (off < config.negligible).mean(0), "worst": off.max()}
    return shares | {"u": u[:SHOWN, :, 0], "y": y[:SHOWN], "found": found[:SHOWN]}


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of example trajectories (inputs, outputs and predictions) and of the errors at every step."""
    found, chosen = errors.all(config, stages), slice(None, None, max(1, config.length // POINTS))
    x = (TARGET.dt * np.arange(1, config.length + 1))[chosen]

    def trajectories(note: str, values: np.ndarray, style: Style) -> list[Series]:
        names = (f"trajectory {i + 1}" for i in range(len(values)))
        return [Series(f"{n}, {note}", x, row[chosen], style, n) for n, row in zip(names, values, strict=True)]

    kept = found["fixed"]
    panels = [
        Panel(
            "held-out inputs and outputs",
            "time",
            "u, prey",
            [*trajectories("u", kept["u"], "dotted"), *trajectories("prey", kept["y"][..., 0], "solid")],
        )
    ]
    for i, name in enumerate(("prey", "predators")):
        series = [
            *trajectories("found", kept["found"][..., i], "solid"), *trajectories("true", kept["y"][..., i], "dashed")
        ]  # fmt: skip
        panels.append(Panel(f"held out: {name}", "time", name, series))
    lines = []
    for way, label in (WAYS | CONTROLS).items():
        lines.append(Series(f"{label}: median", x, found[way]["median"][chosen], "solid", way))
        if way in WAYS:
            decile = found[way]["ninth decile"][chosen]
            lines.append(Series(f"{label}: 90% of trajectories", x, decile, "dashed", way))
    lines.append(Series("2%", x[[0, -1]], [config.negligible] * 2, "dotted"))
    yield Figure(
        "trajectories",
        "Left: held-out inputs and outputs. Middle: the predictions of one MLP at every step from the state "
        "of a fixed random recurrence, and the truth (dashed). Right: relative errors of held-out trajectories.",
        [*panels, Panel("relative error", "time", "|ŷ - y| / |y|", lines, y_scale="log")],
    )


def compared(error: float, other: float) -> str:
    """Compare two errors and return ``better than``, ``worse than`` or ``as good as``. Errors that differ by at most a
    tenth are as good as each other.

    >>> compared(1.0, 1.05), compared(1.0, 2.0)
    ('as good as', 'better than')
    """
    if abs(error - other) <= ALIKE * other:
        return "as good as"
    return "better than" if error < other else "worse than"


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on held-out trajectories: the errors if only the MLP is trained, the errors if
    all weights are trained, and whether good predictions need the input and the nonlinearity.
    """
    found = errors.all(config, stages)
    share = {way: float(one["share"].mean()) for way, one in found.items()}
    middle = {way: float(np.median(one["median"])) for way, one in found.items()}
    held = config.trajectories - int(config.share * config.trajectories)
    ours = {
        way: f"{share[way]:.1%} of the steps of {held} held-out trajectories below {config.negligible:.0%}; median "
        f"error {middle[way]:.2%}, worst {float(found[way]['worst']):.1%}"
        for way in WAYS
    }
    yield Claim(
        "one MLP on the states of a fixed random recurrence gives the outputs at every step",
        "figure 9: predictions on unseen inputs lie on the truth (no number is printed)",
        ours["fixed"],
        rules.at_least(share["fixed"], config.good, config.fair),
        f"N = {config.d_state}, |λ| in ({config.r_min}, 1), hidden layers {config.hidden}, {config.fixed.epochs} "
        "epochs; the same weights at all steps; a constant input lets the state encode the step.",
    )
    yield Claim(
        "trained end to end, the model gives the outputs at every step",
        "not tried",
        ours["end-to-end"],
        rules.ours(rules.at_least(share["end-to-end"], config.good, config.fair)),
        f"All weights trained further for {config.end_to_end.epochs} epochs of whole trajectories: "
        f"{compared(middle['end-to-end'], middle['fixed'])} with the recurrence fixed "
        f"(median {middle['end-to-end']:.3%} against {middle['fixed']:.3%}).",
    )
    yield Claim(
        "the MLP computes, not the recurrence",
        "the recurrence stores, the MLP computes (section 4)",
        f"below {config.negligible:.0%}: {share['linear']:.1%} of steps with a linear readout, {share['mean']:.1%} "
        "with the mean trajectory",
        rules.graded(max(share[way] for way in CONTROLS) < config.fair < share["fixed"]),
        f"Median errors are {middle['linear']:.1%} and {middle['mean']:.1%}.",
    )


run = computing(errors)
SMOKE = Config(
    length=128, trajectories=32, d_state=16, hidden=(32, 32),
    fixed=Training(samples=22 * 128, batch=256, epochs=4, lr=3e-3, device="cpu"),
    end_to_end=Training(samples=22, batch=2, epochs=2, lr=3e-3, device="cpu"),
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 3.0))

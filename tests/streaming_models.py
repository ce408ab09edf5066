"""Models that stream, in one table, and their forward pass: what every way of running a step must agree with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from random_parameters import randomized
from torch import Tensor, nn

import stablessm as ssm
from stablessm.constructions.pointwise._stack import LayerStack
from stablessm.models.sequence_model import SequenceModel


def _rnn(activation: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: ssm.ContinuousRNN(3, 18, 2, activation=activation, dt=0.1, **options)


def _mlp() -> nn.Module:
    model = ssm.models.LinearRNNMLP(3, 10, 2, hidden=(20, 17), r_min=0.9, r_max=0.99)
    model.set_units(5 + torch.randn(2, 50, 3), torch.randn(2, 50, 2))
    return model


def _volterra() -> nn.Module:
    kernels = {1: lambda t: 0.5**t, 2: lambda s, t: 0.2 * 0.6 ** (s + t)}
    return ssm.constructions.volterra(kernels, horizon=30, tol=1e-3)


def _filters(*shape: int, head: int = 1) -> nn.Module:
    steps = torch.arange(80, dtype=torch.float64)
    rates = torch.linspace(0.5, 0.95, int(np.prod(shape)), dtype=torch.float64)
    filters = rates[:, None] ** steps
    filters[0] = torch.randn(80)  # which no short sum fits
    return ssm.constructions.from_convolution(filters.reshape(*shape, 80), tol=1e-4, head=head)


def _regressor() -> nn.Module:
    options = {"mixer": "lru", "mlp": 2, "norm": "batch", "prenorm": False, "activation": "silu", "gate": False}
    return ssm.models.SequenceRegressor(2, d_input=3, d_model=9, n_layers=1, d_state=5, **options)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "real": lambda: ssm.RealSSM(3, 20, 2, dt=0.1),
    "real-discrete": lambda: ssm.RealSSM(3, 70, 2, activation="tanh", skip=True, time="discrete", bias=False),
    "real-average": lambda: ssm.RealSSM(3, 20, 2, average=True),
    "lru": lambda: ssm.LRU(3, 37, 5),
    "lru-plain": lambda: ssm.LRU(3, 16, 2, normalize=False, skip=False, map="tanh"),
    "s4d": lambda: ssm.S4D(21, 7),
    "s4d-bilinear": lambda: ssm.S4D(16, 1, discretization="bilinear"),
    "rnn-tanh": _rnn("tanh", map="skew_minus_psd"),
    "rnn-sigmoid": _rnn("sigmoid", map="skew_minus_psd", bias=False),
    "rnn-linear": _rnn("linear", map="neg_exp", solver="exponential"),
    "rnn-diagonal-linear": _rnn("linear", recurrence="diagonal", map="exp", solver="exponential"),
    **{
        f"rnn-diagonal-{activation}": _rnn(activation, recurrence="diagonal", map="softplus", solver="exponential")
        for activation in ("tanh", "hardtanh", "sigmoid", "relu")
    },
    "min-gru": lambda: ssm.MinGRU(3, 20),
    "min-lstm": lambda: ssm.MinLSTM(3, 17, 2, map="softplus"),
    "rg-lru": lambda: ssm.RGLRU(6, blocks=2),
    "selective": lambda: ssm.SelectiveSSM(11, 5),
    "hgrn": lambda: ssm.HGRN(9, map="exp"),
    "mlp": _mlp,
    "volterra": _volterra,
    "filters": lambda: _filters(20),
    "filters-dense": lambda: _filters(3, 2, head=4),
    "filters-headless": lambda: _filters(3, head=0),
    "stack": lambda: LayerStack(ssm.LRU(3, 6, 4), ssm.RealSSM(4, 5, 2)),
    "classifier": lambda: ssm.models.SequenceClassifier(5, d_input=3, d_model=10, n_layers=1, d_state=4, mlp=1),
    "classifier-last": lambda: ssm.models.SequenceClassifier(
        3, d_input=2, pool="last", mixer="hyena-s4d", d_model=7, d_state=3, norm="none", activation="none"
    ),
    "regressor": _regressor,
    "two layers": lambda: nn.Sequential(ssm.LRU(3, 8, 6), nn.GELU(), ssm.RealSSM(6, 5, 2)),
    "long": lambda: nn.Sequential(
        nn.Linear(3, 9), ssm.S4D(9, 4), nn.SiLU(), nn.Dropout(), nn.Linear(9, 33, bias=False), nn.Hardtanh(),
        nn.Sequential(nn.ReLU(), nn.Tanh()), ssm.ContinuousRNN(33, 5, 70, dt=0.1), nn.Sigmoid(), nn.Identity(),
    ),
}  # fmt: skip


@cache
def _made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomized(MODELS[name]()).eval()


def make(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with random parameters, the same ones each time."""
    model = copy.deepcopy(_made(name))
    torch.manual_seed(0)
    return model.to(dtype)


def width(model: nn.Module) -> int:
    sizes = (getattr(module, name, None) for module in model.modules() for name in ("d_input", "in_features"))
    return next(size for size in sizes if size)


@torch.no_grad()
def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs (batch, time, d_output) from the zero state."""
    if isinstance(model, nn.Sequential):
        for module in model:
            x = forward(module, x)
        return x
    y = model.sequence(x) if isinstance(model, SequenceModel) else model(x)
    return y[0] if isinstance(y, tuple) else y


def relative_error(ours: Tensor, truth: Tensor) -> float:
    assert ours.shape == truth.shape
    if not truth.numel():
        return 0.0
    return ((ours - truth).abs().max() / truth.abs().max()).item()

"""Random models with one planted error beside innocent parts: are cause, place and remedy the right ones?"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import trace_divergence


class Inline(nn.Module):
    """A function between two linear layers, or alone."""

    def __init__(self, width: int, function: Callable[[Tensor], Tensor], alone: bool) -> None:
        super().__init__()
        self.function = function
        self.before, self.after = (nn.Identity() if alone else nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


class First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Masked(nn.Module):
    """Causal attention whose mask is the logarithm of zeros and ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1]).tril().log()
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Branches(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"left": left, "right": right})

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["right"](x) + self.parts["left"](x)


def innocent(width: int, draw: np.random.Generator) -> nn.Module:
    """Return a part of a model that does not diverge, although some of these parts look as if they might."""
    relu = nn.RNN(width, width, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        relu.weight_hh_l0.mul_(1.05 / float(torch.linalg.eigvals(relu.weight_hh_l0).abs().max()))
    return (
        nn.Linear(width, width),
        nn.LayerNorm(width),
        First(relu),
        First(ssm.RealSSM(width, 2, width, map="direct", eigenvalues=torch.tensor([-1.0, 0.01]), dt=0.1)),
        Masked(width),
        nn.Sequential(nn.Linear(width, width), nn.GELU()),
    )[draw.integers(6)]


class Loop(nn.Module):
    """A recurrence written by hand, with an unstable weight of some form."""

    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.form, self.drive = form, nn.Linear(width, width)
        weight = {
            "diagonal": torch.full((width,), 2.0),
            "scalar": torch.tensor(2.5),
            "logarithm": torch.full((width,), 0.7),
            "scaled": 16 * torch.eye(width),
            "filter": torch.full((1, 1, 3), 1.2),
            "joined": torch.cat([torch.eye(width), 2 * torch.eye(width)], 1),
            "rank one": torch.full((width, 1), 2.0 / width),
            "heads": 2 * torch.eye(width).repeat(2, 1, 1),
        }[form]
        self.recurrent = nn.Parameter(weight)

    def step(self, h: Tensor, x: Tensor) -> Tensor:
        match self.form:
            case "logarithm":
                return self.recurrent.exp() * h + x
            case "scaled":
                return h @ (self.recurrent / 8) + x
            case "filter":
                return nn.functional.conv1d(h[:, None], self.recurrent, padding=1)[:, 0] + x
            case "joined":
                return nn.functional.linear(torch.cat([x, h], -1), self.recurrent)
            case "rank one":
                return (h @ self.recurrent).expand_as(h) + x
            case "heads":
                return (torch.stack([h, h], 1)[:, :, None] @ self.recurrent)[:, 0, 0] + x
        return self.recurrent * h + x

    def forward(self, x: Tensor) -> Tensor:
        h, states = torch.zeros_like(x[:, 0]), []
        for now in self.drive(x).abs().unbind(1):
            h = self.step(h, now)
            states.append(h)
        return torch.stack(states, 1)


FORMS = ("diagonal", "scalar", "logarithm", "scaled", "filter", "joined", "rank one", "heads")
FORWARD = {
    "masked softmax": [
        lambda x: (x @ x.mT + torch.full((x.shape[1],) * 2, -math.inf).triu()).softmax(-1) @ x,
        lambda x: x.masked_fill(x < 1e9, -math.inf).softmax(-1),
    ],
    "log": [
        lambda x: (1e4 * x).softmax(-1).log(),
        lambda x: x + (0 * x).sum(-1, keepdim=True).log(),
        lambda x: x + torch.logdet(torch.zeros(2, 2)),
        lambda x: torch.log1p(-torch.ones_like(x)),
    ],
    "division": [
        lambda x: (0 * x) / (0 * x).norm(dim=-1, keepdim=True),
        lambda x: x * (0 * x).norm(dim=-1, keepdim=True).pow(-1),
        lambda x: x + torch.linalg.solve_ex(torch.zeros(2, 2), torch.ones(2, 1))[0].sum(),
        lambda x: torch._weight_norm(0 * x[0], torch.ones(len(x[0]), 1), 0) + x,
    ],
    "exp": [
        lambda x: (1e4 + x).exp() / (1e4 + x).exp().sum(-1, keepdim=True),
        lambda x: 2.0 ** (1e4 + x.abs()),
        lambda x: x + torch.pow(10.0, 100 + x),
    ],
    "domain": [lambda x: (-1 - x.abs()).sqrt(), lambda x: torch.atanh(0 * x - 1)],
    "overflow": [
        lambda x: x.half().mul(0).add(300).square().float(),
        lambda x: x.half().mul(0).add(2).mul(60000).float(),
        lambda x: (x * 0 + 70000).half().float(),
        lambda x: nn.functional.layer_norm(1e30 * x, x.shape[-1:]),
        lambda x: (1e25 + x) @ (1e25 + x).mT @ x,
    ],
}
GRADIENT = {
    "slope": [
        lambda x: (0 * x).sqrt(),
        lambda x: torch.hypot(0 * x, 0 * x) + x,
        lambda x: torch.xlogy(0 * x, 0 * x) + x,
        lambda x: (0 * x) ** 0.3,
        lambda x: torch.special.entr(0 * x) + x,
        lambda x: x + torch.linalg.eigh(torch.eye(2) + 0 * x.sum())[1].sum(),
        lambda x: x + torch.linalg.eig(torch.eye(2) + 0 * x.sum())[1].real.sum(),
        lambda x: x + torch.linalg.svd(torch.eye(2) + 0 * x.sum())[0].sum(),
    ],
    "infinity": [lambda x: x + 0 * (x - torch.inf).logsumexp(-1, keepdim=True).exp()],
    "exp": [lambda x: 1 / (1 + (1e3 + x.abs()).exp()) + x],
    "log": [lambda x: torch.where(x < 1e9, x, (0 * x).log())],
    "division": [lambda x: torch.where(x < 1e9, x, 1 / (0 * x))],
}
REMEDIES = {
    "masked softmax": "mask",
    "log": "clamp",
    "division": "epsilon",
    "exp": "exponent",
    "domain": "clamp",
    "overflow": "normalize",
    "infinity": "mask",
    "slope": "epsilon",
    "recurrent weight": "spectral radius",
}


def planted(cause: str, gradient: bool, width: int, draw: np.random.Generator) -> nn.Module:
    if cause == "recurrent weight":
        return Loop(width, FORMS[draw.integers(len(FORMS))])
    functions = (GRADIENT if gradient else FORWARD)[cause]
    return Inline(width, functions[draw.integers(len(functions))], bool(draw.integers(2)))


@settings(max_examples=40)
@given(
    case=st.sampled_from([(c, False) for c in (*FORWARD, "recurrent weight")] + [(c, True) for c in GRADIENT]),
    seed=st.integers(0, 2**31),
)
def test_innocent_parts_are_not_blamed(case: tuple[str, bool], seed: int) -> None:
    cause, gradient = case
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width = int(draw.integers(2, 6))
    bad = planted(cause, gradient, width, draw)
    before, after = ([innocent(width, draw) for _ in range(draw.integers(0, 3))] for _ in range(2))
    model = nn.Sequential(nn.Linear(width, width), *before, bad, *after)
    if draw.integers(3) == 0:
        model = nn.Sequential(nn.Linear(width, width), Branches(innocent(width, draw), model))
    place = next(name for name, module in model.named_modules() if module is bad)
    with trace_divergence(model, when="record") as trace:
        y = model(torch.randn(2, 300 if cause == "recurrent weight" else 12, width))
        if gradient:
            assert y.isfinite().all()
            y.square().mean().backward()
    report = trace.report
    assert report.phase == ("gradient" if gradient else "forward")
    assert report.cause == cause
    assert REMEDIES[cause] in report.remedy
    assert f"{report.module}.".startswith(f"{place}.")
    if cause == "recurrent weight":
        assert report.weight == f"{place}.recurrent"
        assert report.radius > 1.5


LOSSES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda y, bad: (y - bad).square().mean(),  # targets
    lambda y, bad: (y.square() * bad).mean(),  # weights
    lambda y, bad: (y - y.detach()).square().mean().sqrt(),  # a root at 0
    lambda y, bad: ((y - y.detach()) * y).clamp(min=0).log().sum(),
]


@settings(max_examples=15)
@given(loss=st.sampled_from(LOSSES), nested=st.booleans(), seed=st.integers(0, 2**31))
def test_the_loss_is_blamed_for_targets_that_are_not_finite(
    loss: Callable[[Tensor, Tensor], Tensor], nested: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width = int(draw.integers(2, 6))
    parts = [innocent(width, draw) for _ in range(draw.integers(1, 5))]
    model = nn.Sequential(nn.Linear(width, width), nn.Sequential(*parts) if nested else parts[0])
    bad = torch.randn(2, 12, width)
    bad[draw.integers(2), draw.integers(12), draw.integers(width)] = math.nan if draw.integers(2) else math.inf
    with trace_divergence(model, when="record") as trace:
        loss(model(torch.randn(2, 12, width)), bad).backward()
    assert (trace.report.phase, trace.report.cause) == ("gradient", "loss")
    assert "targets" in trace.report.remedy


@pytest.mark.parametrize("way", ["positional", "mapping", "target"])
@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_low_data_are_bad_data(way: str, bad: float) -> None:
    x = torch.randn(3, 5, 2)
    x[1, 2, 0] = bad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))

        def forward(self, batch: object, target: Tensor | None = None) -> Tensor:
            y = self.net(batch["x"] if isinstance(batch, dict) else batch)
            return y if target is None else (y - target).square().mean()

    with trace_divergence(Model(), when="record") as trace:
        trace._model(*{"positional": (x,), "mapping": ({"x": x},), "target": (torch.randn(3, 5, 2), x)}[way])
    assert (trace.report.phase, trace.report.index) == ("input", (1, 2, 0))


def test_a_bad_buffer_and_a_bad_parameter_have_their_own_remedies() -> None:
    """An unstable mode elsewhere does not change the remedy."""
    unstable = ssm.RealSSM(2, 2, 2, map="direct", eigenvalues=torch.tensor([-1.0, 0.01]))
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), unstable)
    model[0].running_mean[1] = math.nan
    with trace_divergence(model, when="record") as trace:
        pass
    assert trace.report.module == "0"
    assert "buffer" in trace.report.remedy
    model[0].running_mean.zero_()
    with torch.no_grad():
        model[1].bias[0] = math.nan
    with trace_divergence(model, when="record") as trace:
        pass
    assert trace.report.module == "1"
    assert "learning rate" in trace.report.remedy


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_table_is_named(index: int) -> None:
    model = nn.ModuleDict({"tokens": nn.Embedding(5, 3)})
    with trace_divergence(model, when="record") as trace, pytest.raises(IndexError):
        model["tokens"](torch.tensor([[0, 1], [4, index]]))
    assert (trace.report.module, trace.report.cause, trace.report.index) == ("tokens", "index", (1, 1))
    assert "num_embeddings" in trace.report.remedy


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("last", [nn.Linear(3, 3), nn.TransformerEncoderLayer(3, 1, 6, 0.0, batch_first=True)])
def test_a_learning_rate_that_is_too_large_is_named(optimizer: type[torch.optim.Optimizer], last: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), last, nn.Linear(3, 3))
    adapt, x, target = optimizer(model.parameters(), lr=1e5), torch.randn(4, 6, 3), torch.randn(4, 6, 3)
    with trace_divergence(model, when="record") as trace:
        for _ in range(60):
            adapt.zero_grad()
            (model(x) - target).square().mean().backward()
            if trace.report is not None:
                break
            adapt.step()
    assert "learning rate" in trace.report.remedy


class Masks(nn.Module):
    """A module that makes a causal mask, with or without a bias by distance."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, ids: Tensor) -> Tensor:
        distance = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
        return torch.where(distance >= 0, -self.bias * distance, -math.inf)


class Tokens(nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.masks, self.table = Masks(bias), nn.Embedding(9, 4)
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        return self.attention(h, h, h, attn_mask=self.masks(ids), need_weights=False)[0]


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_a_module_may_make_a_mask(bias: float) -> None:
    model = Tokens(bias)
    with trace_divergence(model, when="record") as trace:
        model(torch.randint(0, 9, (2, 7))).sum().backward()
    assert trace.report is None


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_innocent_models_are_not_reported(seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width = int(draw.integers(2, 6))
    parts = [innocent(width, draw) for _ in range(draw.integers(1, 5))]
    model = nn.Sequential(nn.Linear(width, width), Branches(innocent(width, draw), nn.Sequential(*parts)))
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(2, 12, width)).square().mean().backward()
    assert trace.report is None


STABLE: dict[str, Callable[[int, int], nn.Module]] = {
    "LRU": lambda d, n: ssm.LRU(d, n, d),
    "S4D": lambda d, n: ssm.S4D(d, n),
    "RealSSM": lambda d, n: ssm.RealSSM(d, n, d, map="softplus"),
    "discrete": lambda d, n: ssm.RealSSM(d, n, d, map="tanh", time="discrete"),
    "dense": lambda d, n: ssm.ContinuousRNN(d, n, d, activation="linear", solver="exponential", map="skew_minus_psd"),
    "MinGRU": ssm.MinGRU,
    "MinLSTM": ssm.MinLSTM,
    "HGRN": lambda d, n: ssm.HGRN(d),
    "SelectiveSSM": lambda d, n: ssm.SelectiveSSM(d, n),
}


@settings(max_examples=40)
@given(kind=st.sampled_from(list(STABLE)), gradient=st.booleans(), seed=st.integers(0, 2**31))
def test_no_mode_of_a_stable_recurrence_is_to_blame_for_large_data(kind: str, gradient: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    d = int(draw.integers(1, 5))
    layer, x = STABLE[kind](d, int(draw.integers(1, 7))), torch.randn(2, 30, d)
    model = nn.Sequential(layer) if draw.integers(2) else layer
    x[1, draw.integers(30)] = 1e25 if gradient else 3e38
    with trace_divergence(model, when="record") as trace:
        y = model(x)[0]
        if gradient:
            (y - 1).square().sum().backward()
    assume(trace.report is not None)  # the layer may scale the data down
    assert trace.report.cause != "recurrent weight"
    assert "to blame" not in str(trace.report)
    if trace.report.phase == "forward":
        assert trace.report.mode is None
        assert "inputs" in trace.report.remedy


def test_an_unstable_mode_before_a_stable_recurrence_is_to_blame() -> None:
    unstable = ssm.RealSSM(2, 2, 2, map="direct", eigenvalues=torch.tensor([-1.0, 0.1]))
    stable = ssm.LRU(2, 4, 2)
    with torch.no_grad():
        stable.B.mul_(1e10)
    model = nn.Sequential(First(unstable), First(stable))
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(1, 860, 2))
    assert (trace.report.module, trace.report.mode.module) == ("1.layer", "0.layer")
    assert trace.report.cause == "recurrent weight"


def test_an_unstable_mode_after_the_first_bad_value_is_not_to_blame() -> None:
    unstable = ssm.RealSSM(2, 2, 2, map="direct", eigenvalues=torch.tensor([-1.0, 0.1]))
    model, x = nn.Sequential(First(ssm.LRU(2, 4, 2)), First(unstable)), torch.randn(1, 20, 2)
    x[0, 9] = 3e38
    with trace_divergence(model, when="record") as trace:
        model(x)
    assert (trace.report.module, trace.report.mode, trace.report.cause) == ("0.layer", None, "overflow")

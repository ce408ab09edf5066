"""Broken models of every cause in random architectures: are the cause, the module and the remedy the right ones?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stablessm import ArgumentError
from stablessm.instruments import trace_divergence


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class First(nn.Module):
    """A recurrence without its state."""

    def __init__(self, recurrence: nn.RNNBase) -> None:
        super().__init__()
        self.recurrence = recurrence

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrence(x)[0]


class Attention(nn.Module):
    """Attention whose first position may see nothing."""

    def __init__(self, width: int, added: bool, module: bool) -> None:
        super().__init__()
        self.query, self.key, self.added = nn.Linear(width, width), nn.Linear(width, width), added
        self.softmax = nn.Softmax(-1) if module else Function(lambda scores: scores.softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT
        hidden = torch.ones_like(scores, dtype=torch.bool).triu()
        mask = torch.zeros_like(scores).masked_fill(hidden, -torch.inf)
        return self.softmax(scores + mask if self.added else scores.masked_fill(hidden, -torch.inf)) @ x


class Padded(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=torch.ones(x.shape[:2], dtype=torch.bool))[0]


class Loop(nn.Module):
    """A loop over a cell, of torch.nn or of one's own."""

    def __init__(self, width: int, own: bool) -> None:
        super().__init__()
        if own:
            self.weight_hh, self.drive = nn.Parameter(torch.randn(width, width)), nn.Linear(width, width)
        else:
            self.cell = nn.RNNCell(width, width, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        h, states = torch.zeros_like(x[:, 0]), []
        for now in x.unbind(1):
            h = (h @ self.weight_hh.T + self.drive(now)).relu() if hasattr(self, "drive") else self.cell(now, h)
            states.append(h)
        return torch.stack(states, 1)


LOGS = [lambda h: (h - h).relu().log(), lambda h: h * (h * 0).log(), lambda h: torch.log10(-h.abs()), lambda h: h.log()]
DIVISIONS = [
    lambda h: (h - h) / (h - h).abs().sum(-1, keepdim=True),
    lambda h: h / (0 * h),
    lambda h: h[:, :0].mean(1, keepdim=True) + h,
    lambda h: (h - h.mean()) / (0 * h).std(),
    lambda h: h * (0 * h).norm(dim=-1, keepdim=True).reciprocal(),
]


def broken(cause: str, width: int, draw: np.random.Generator) -> nn.Module:
    if cause == "masked softmax":
        return (
            Padded(width) if draw.integers(3) == 0 else Attention(width, bool(draw.integers(2)), bool(draw.integers(2)))
        )
    if cause != "recurrent weight":
        return Function(draw.choice(np.array(LOGS if cause == "log" else DIVISIONS, dtype=object)))
    kind = draw.integers(3)
    model = Loop(width, kind == 1)
    if kind == 2:
        model = First(nn.RNN(width, width, int(draw.integers(1, 3)), nonlinearity="relu", batch_first=True))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "weight_hh" in name:
                weight.abs_().mul_(draw.uniform(2, 4) / float(torch.linalg.eigvals(weight).abs().max()))
            elif "bias" in name:
                weight.abs_()
    return model


def healthy(width: int, draw: np.random.Generator) -> nn.Module:
    return (
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.Dropout(0.1),
        First(nn.GRU(width, width, batch_first=True)),
        First(nn.RNN(width, width, batch_first=True)),
        nn.Sequential(nn.Linear(width, width), nn.GELU()),
    )[draw.integers(6)]


REMEDIES = {"masked softmax": "mask", "log": "clamp", "division": "epsilon", "recurrent weight": "spectral radius"}


@settings(max_examples=12)
@given(cause=st.sampled_from(list(REMEDIES)), seed=st.integers(0, 2**31))
def test_the_cause_and_the_module_are_named(cause: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width = int(draw.integers(2, 6))
    before, after = ([healthy(width, draw) for _ in range(draw.integers(0, 3))] for _ in range(2))
    model = nn.Sequential(*before, broken(cause, width, draw), *after)
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(2, 200 if cause == "recurrent weight" else 12, width))
    report = trace.report
    assert report.cause == cause
    assert report.module.split(".")[0] == str(len(before))
    assert REMEDIES[cause] in report.remedy
    assert (report.weight is not None) == (cause == "recurrent weight")
    if report.weight is not None:
        assert "weight_hh" in str(report)
        assert report.radius > 1


def test_a_recurrence_before_is_blamed_for_what_overflows_after_it() -> None:
    rnn = First(nn.RNN(1, 1, nonlinearity="relu", bias=False, batch_first=True))
    with torch.no_grad():
        rnn.recurrence.weight_hh_l0.fill_(2.0)
        rnn.recurrence.weight_ih_l0.fill_(1.0)
    model = nn.Sequential(rnn, Function(lambda h: h * 1e20))
    with trace_divergence(model, when="record") as trace:
        model(torch.ones(1, 100, 1))
    assert (trace.report.module, trace.report.weight) == ("1", "0.recurrence.weight_hh_l0")


def test_a_saturating_recurrence_is_not_blamed_for_what_overflows_after_it() -> None:
    rnn = First(nn.RNN(1, 1, batch_first=True))
    with torch.no_grad():
        rnn.recurrence.weight_hh_l0.fill_(3.0)
    model = nn.Sequential(rnn, Function(lambda h: (1e4 + h).exp()))
    with trace_divergence(model, when="record") as trace:
        model(torch.ones(1, 10, 1))
    assert (trace.report.module, trace.report.cause, trace.report.weight) == ("1", "exp", None)


def test_a_gradient_that_explodes_through_time_is_blamed_on_the_recurrent_weight() -> None:
    model = nn.Sequential(First(nn.RNN(1, 1, nonlinearity="relu", bias=False, batch_first=True)))
    with torch.no_grad():
        model[0].recurrence.weight_hh_l0.fill_(2.0)
        model[0].recurrence.weight_ih_l0.fill_(1e-30)
    with trace_divergence(model, when="record") as trace:
        model(torch.ones(1, 200, 1, requires_grad=True) * 1e-5)[:, -1].sum().backward()
    assert (trace.report.phase, trace.report.weight) == ("gradient", "0.recurrence.weight_hh_l0")


def test_looking_for_the_cause_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), Function(lambda x: x / 0))
    x = torch.randn(8, 2)
    plain = nn.Sequential(nn.BatchNorm1d(2))
    plain(x)
    torch.manual_seed(0)
    model(x)
    expected = torch.rand(3)
    model[0].reset_running_stats()
    torch.manual_seed(0)
    with trace_divergence(model, when="record"):
        model(x)
    torch.testing.assert_close(torch.rand(3), expected)
    torch.testing.assert_close(model[0].running_mean, plain[0].running_mean)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_data_has_no_other_cause(bad: float) -> None:
    x = torch.randn(2, 5, 3)
    x[1, 2, 0] = bad
    with trace_divergence(nn.Linear(3, 3), when="record") as trace:
        trace._model(x)
    assert (trace.report.phase, trace.report.cause) == ("input", None)
    assert "clean the data" in trace.report.remedy


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_data_that_spoils_only_a_gradient_is_named(bad: float) -> None:
    """The output is multiplied by a mask that hides the bad value; 0 · ∞ in the gradient does not."""
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].register_forward_hook(lambda _module, _x, y: torch.where(y.isfinite(), y, 0))
    x = torch.randn(2, 5, 3)
    x[1, 2, 0] = bad
    with trace_divergence(model, when="record") as trace:
        model(x).square().sum().backward()
    assert (trace.report.phase, trace.report.index) == ("input", (1, 2, 0))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"an nn\.Module"):
        trace_divergence(lambda x: x)


class Applied(nn.Module):
    """A function of the input."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (
            lambda x: nn.functional.cross_entropy(x.flatten(0, 1), torch.full((x.shape[0] * x.shape[1],), -100)),
            "division",
        ),
        (lambda x: nn.functional.layer_norm(0 * x, x.shape[-1:], eps=0.0), "division"),
        (lambda x: torch.addcdiv(x, x, 0 * x), "division"),
        (lambda x: torch.linalg.inv_ex(0 * x[:, :3, :3])[0], "division"),
        (lambda x: torch.atanh(0 * x + 1), "domain"),
        (lambda x: torch.lgamma(0 * x), "domain"),
        (lambda x: x + torch.full((3,), torch.nan), None),
        (lambda x: 0 * x * float("inf"), None),
        (lambda x: (1e30 * x) * (1e30 * x), "overflow"),
        (lambda x: (x.abs() + 1) * 3e38 * 2.0, "overflow"),
        (lambda x: (x.abs() + 100) ** 40, "overflow"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_only_large_numbers_overflow(function, cause: str | None, seed: int) -> None:
    """An operation that nobody listed gets no cause rather than a wrong one."""
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(seed))
    model = Applied(function)
    with trace_divergence(model, when="record") as trace:
        model(x)
    assert trace.report is not None
    assert trace.report.cause == cause


def looped(named: str) -> nn.Module:
    """A linear recurrence written by hand, with a matrix that nothing calls recurrent."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drive, self.mix = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
            self.matrix = nn.Parameter(1.9 * torch.eye(4))
            nn.init.eye_(self.mix.weight).mul_(1.9) if named == "mix.weight" else None

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros_like(x[:, 0])
            for now in x.unbind(1):
                h = (self.mix(h) if named == "mix.weight" else h @ self.matrix.T) + self.drive(now)
            return h

    with torch.no_grad():
        return Looped()


@pytest.mark.parametrize("named", ["mix.weight", "matrix"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_recurrence_written_by_hand_is_blamed(named: str, seed: int) -> None:
    torch.manual_seed(seed)
    with trace_divergence(looped(named), when="record") as trace:
        trace._model(torch.randn(2, 300, 4))
    assert (trace.report.cause, trace.report.weight) == ("recurrent weight", named)
    assert trace.report.radius == pytest.approx(1.9)


MASK = torch.full((5, 5), -torch.inf)


@pytest.mark.parametrize(
    ("cause", "function"),
    [
        ("division", lambda h: (0 * h) ** -0.5),
        ("division", lambda h: (0 * h).pow(-1)),
        ("overflow", lambda h: (10 + h.relu()) ** 50),
        ("exp", lambda h: 10 ** (50 + h.relu())),
        ("infinity", lambda h: ((scores := h @ h.mT + MASK) - scores.amax(-1, keepdim=True)).exp() @ h),
        ("infinity", lambda h: (torch.zeros(5, 5) * MASK) @ h),
        ("overflow", lambda h: ((-h.abs() - 1) * 1e30 * 1e30) * 0),
    ],
)
def test_causes_of_bad_outputs(cause: str, function: Callable[[Tensor], Tensor]) -> None:
    with trace_divergence(nn.Sequential(nn.Linear(3, 3), Function(function)), when="record") as trace:
        trace._model(torch.randn(2, 5, 3))
    assert (trace.report.phase, trace.report.cause) == ("forward", cause)


@pytest.mark.parametrize(
    ("cause", "function"),
    [
        ("slope", lambda h: (0 * h).sqrt()),
        ("slope", lambda h: (0 * h).square().sum(-1).sqrt()),
        ("slope", lambda h: (0 * h) ** 0.3),
        ("slope", lambda h: torch.acos(0 * h + 1)),
        ("log", lambda h: torch.where(h.isnan(), (0 * h).log(), h)),
        ("division", lambda h: torch.where(h.isnan(), 1 / (0 * h), h)),
        ("domain", lambda h: torch.where(h.isnan(), (-1 - h.abs()).sqrt(), h)),
        ("masked softmax", lambda h: torch.where(MASK == 0, (h @ h.mT + MASK).softmax(-1), 0.0)),
        ("loss", lambda h: h.square() + h.exp()),
    ],
)
def test_causes_that_only_the_gradient_shows(cause: str, function: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Function(function))
    with trace_divergence(model, when="record") as trace:
        y = model(torch.randn(2, 5, 3))
        assert y.isfinite().all()
        (y.sum() * torch.inf if cause == "loss" else y.sum()).backward()
    assert (trace.report.phase, trace.report.cause) == ("gradient", cause)


def test_a_recorded_divergence_leaves_the_backward_pass_possible() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    model[1].running_var[0] = -1
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(3, 2)).sum().backward()
    assert (trace.report.module, trace.report.cause) == ("1", "domain")
    assert model[0].weight.grad is not None


def test_an_index_below_0_keeps_its_sign() -> None:
    model = nn.Embedding(5, 2)
    with trace_divergence(model, when="record") as trace, pytest.raises(IndexError):
        model(torch.tensor([1, -2]))
    assert "-2 in input[0]" in str(trace.report)

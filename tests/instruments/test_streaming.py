"""A model that streams rightly passes, one with a fault fails at the place of the fault, one that cannot is told so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hf_models
import pytest
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments.streaming import check_streaming

GOOD = {
    "real": lambda: ssm.RealSSM(3, 8, 2),
    "real-conv": lambda: ssm.RealSSM(3, 8, 2, mode="conv"),
    "lru": lambda: ssm.LRU(3, 8, 2),
    "s4d": lambda: ssm.S4D(3, 8),
    "rnn": lambda: ssm.ContinuousRNN(3, 8, 2, dt=0.1),
    "torch-rnn": lambda: nn.RNN(3, 4, num_layers=2, dropout=0.5),
    "torch-gru": lambda: nn.GRU(3, 4, batch_first=True),
    "torch-lstm": lambda: nn.LSTM(3, 4, batch_first=True, num_layers=2),
    "torch-lstm-time-first": lambda: nn.LSTM(3, 4),
}


class Sum(nn.Module):
    """y[t] = x[0] + … + x[t], with a choice of faults."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.d_input, self.fault = 2, fault

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        forgets = self.fault == "forgets" and x.shape[1] == 1
        y = x.cumsum(1) + (0 if state is None or forgets else state[:, None])
        return y, y[:, -1] * (2 if self.fault == "state" and x.shape[1] > 1 else 1)

    def step(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        before = torch.zeros_like(x_t) if state is None else state
        return (before if self.fault == "late" else before + x_t), before + x_t


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(GOOD))
def test_good_models(name: str, dtype: torch.dtype) -> None:
    model = GOOD[name]().to(dtype)
    report = check_streaming(model, length=40)
    assert report.ok, str(report)
    assert report.tol == (1e-9 if dtype == torch.float64 else 1e-4)
    assert [entry.way for entry in report.differences][:4] == [
        "chunks of 1, 39",
        "chunks of 39, 1",
        "chunks of 13, 12, 15",
        "chunks of 1, 1, …, 1",
    ]
    assert (report.differences[-1].way == "step") == name.startswith(("real", "lru", "s4d", "rnn"))
    assert report.worst.first is None
    assert model.training


def test_a_bfloat16_layer() -> None:
    assert check_streaming(ssm.LRU(3, 8, 2).to(torch.bfloat16)).ok


def test_state_dropped_between_chunks() -> None:
    def drops(x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return Sum()(x, None)

    report = check_streaming(drops, d_input=2, length=20, chunks=[(20,), (7, 13), (12, 8)])
    assert not report.ok
    whole, early, late = report.differences
    assert whole.relative == 0
    assert (early.first, late.first) == (7, 12)
    # what is missing is the sum of the first chunk, the same at every step after it
    x = torch.randn(2, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    assert early.absolute == pytest.approx(float(x[:, :7].sum(1).abs().max()), rel=1e-5)
    assert (early.batch, early.channel) == divmod(int(x[:, :7].sum(1).abs().argmax()), 2)
    assert early.time >= 7
    assert early.state > 0.01
    assert "does not stream the same numbers" in str(report)
    assert "from time 7 on" in str(report)


def test_a_state_forgotten_for_chunks_of_one_step() -> None:
    report = check_streaming(Sum("forgets"), length=16)
    assert not report.ok
    fine = {entry.way: entry.first for entry in report.differences}
    assert fine == {
        "chunks of 1, 15": None,
        "chunks of 15, 1": 15,
        "chunks of 5, 4, 7": None,
        "chunks of 1, 1, …, 1": 1,
        "step": None,
    }


def test_the_state_may_be_any_object() -> None:
    def counted(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, last = Sum()(x, None if state is None else state.total)
        return y, SimpleNamespace(total=last)

    assert check_streaming(counted, d_input=2).ok
    assert check_streaming(hf_models.model("mamba2", torch.float32), length=20).ok


def test_a_step_that_is_one_late() -> None:
    report = check_streaming(Sum("late"), length=16)
    assert not report.ok
    assert report.worst.way == "step"
    assert report.worst.first == 0
    x = torch.randn(2, 16, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = tuple(int(i) for i in torch.unravel_index(x.abs().argmax(), x.shape))
    assert (report.worst.batch, report.worst.time, report.worst.channel) == index  # the difference is x itself
    assert all(entry.state < 1e-6 for entry in report.differences)


def test_a_wrong_final_state_counts() -> None:
    report = check_streaming(Sum("state"), length=16, chunks=[(16,), (15, 1)])
    assert not report.ok
    assert report.differences[1].state > 0.1


def test_nan_is_not_ok() -> None:
    def spoils(x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        y, last = Sum()(x, state)
        return (y if state is None else y * torch.nan), last

    report = check_streaming(spoils, d_input=2, length=8)
    assert not report.ok
    assert report.worst.absolute == torch.inf


def bidirectional(x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
    return x.flip(1).cumsum(1).flip(1), x[:, 0]


def noisy(x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
    return x + torch.randn_like(x), x[:, -1]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), "which raised TypeError"),
        (nn.Conv1d(3, 3, 1), "which raised TypeError"),
        (lambda x, state: x, "returns a Tensor"),
        (lambda x, state: (x, None), "returns no state"),
        (lambda x, state: (x.sum(), x), "whose output has shape"),
        (bidirectional, "a causal model, got bidirectional"),
        (nn.LSTM(3, 4, bidirectional=True), "a causal model, got LSTM"),
        (ssm.Bidirectional(ssm.LRU(3, 4, 2)), "a causal model, got Bidirectional"),
        (noisy, "the same output for the same input, got noisy"),
    ],
)
def test_models_that_cannot_stream_are_told_why(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^model: expected .*{message}"):
        check_streaming(model, d_input=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": [(3, 4)]}, r"^chunks: expected positive lengths that add up to 64"),
        ({"chunks": [(64, 0)]}, "^chunks"),
        ({"length": 3}, "^length: expected at least 4"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_streaming(Sum(), **options)


def test_the_width_must_be_known() -> None:
    with pytest.raises(ValueError, match=r"^d_input: expected the number of input channels"):
        check_streaming(noisy)

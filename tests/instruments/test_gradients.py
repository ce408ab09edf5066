"""|gradient| / |weight| entry by entry against plain torch; the prediction of theorem 3.4; training runs."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import gradients
from stablessm.instruments.gradients import GradientTracker, gradient_over_weight

mpl.use("Agg")


class Model(nn.Module):
    def __init__(self, map: str = "best") -> None:
        super().__init__()
        self.encode, self.mixer = nn.Linear(1, 2), ssm.S4D(2, 4, map=map)
        self.idle = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(self.encode(x))[0]


def backward(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.randn(3, 20, 1)).square().sum().backward()


def test_numbers_against_plain_torch() -> None:
    model = Model()
    backward(model)
    ratios = gradient_over_weight(model)
    assert "idle.weight" not in ratios.parameters
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        truth = (p.grad.abs() / p.detach().abs()).flatten().sort().values
        entry = ratios[name]
        assert entry.maximum == pytest.approx(float(truth[-1]))
        assert entry.quantiles[0] == pytest.approx(float(truth.quantile(0.5, interpolation="higher")))
        assert entry.quantiles[2] == pytest.approx(float(truth.quantile(0.99, interpolation="higher")))
        recurrent = name in ("mixer.w", "mixer.frequency", "mixer.log_dt")
        assert entry.recurrent == recurrent
        torch.testing.assert_close(entry.ratio, p.grad.abs() / p.detach().abs())
        assert (entry.predicted is not None) == (name == "mixer.w")
    w = model.mixer.w
    torch.testing.assert_close(ratios["mixer.w"].ratio, w.grad.abs() / w.detach().abs())
    assert ratios["mixer.w"].predicted.shape == w.shape
    assert ratios.maximum == max(entry.maximum for entry in ratios.parameters.values())
    assert "mixer.frequency" in str(ratios)
    assert gradient_over_weight(model, recurrent_only=True).parameters.keys() == {
        "mixer.w",
        "mixer.frequency",
        "mixer.log_dt",
    }


def test_the_constant_of_theorem_3_4_does_not_depend_on_the_map() -> None:
    """The same function under every map: |∂loss/∂w| / G(w) = |∂loss/∂λ| f², whatever f is (eq. 86 to 88)."""
    layer, x = ssm.RealSSM(1, 8, 1, map="exp", eigenvalues=-torch.logspace(-2, -0.1, 8)).double(), torch.randn(2, 50, 1)
    constants = []
    for map in ("direct", "exp", "softplus", "best"):
        twin = layer.with_map(map)
        twin(x.double())[0].square().sum().backward()
        entry = gradient_over_weight(twin)["w"]
        constants.append(entry.ratio / entry.predicted)
    for constant in constants[1:]:
        torch.testing.assert_close(constant, constants[0], rtol=1e-5, atol=0)


def test_zero_weights() -> None:
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0, 2.0]]))
    model(torch.tensor([[0.0, 1.0, 1.0]])).sum().backward()
    entry = gradient_over_weight(model)["weight"]
    assert (entry.maximum, entry.quantiles[0]) == (torch.inf, 0.5)
    model.weight.grad.fill_(torch.nan)
    assert np.isnan(gradient_over_weight(model)["weight"].maximum)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 4).to(dtype)
    model(torch.randn(2, 4, dtype=dtype)).sum().backward()
    assert np.isfinite(gradient_over_weight(model).maximum)


def test_sparse_gradients_and_complex_parameters() -> None:
    model = nn.Embedding(10, 2, sparse=True)
    model(torch.tensor([3])).sum().backward()
    assert gradient_over_weight(model)["weight"].quantiles[0] == 0
    model.c = nn.Parameter(torch.tensor([3 + 4j]))
    model.c.grad = torch.tensor([5j])
    assert gradient_over_weight(model)["c"].maximum == 1


def test_large_tensors_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "SAMPLE", 1000)
    p = nn.Parameter(torch.ones(100, 1000))
    p.grad = torch.rand(100, 1000)
    p.grad[50, 500] = 7.0
    entry = gradient_over_weight(nn.ParameterList([p]))["0"]
    assert entry.maximum == 7
    assert entry.quantiles[0] == pytest.approx(0.5, abs=0.06)


def test_a_tracker_follows_an_optimizer_and_lets_go() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    seen = []
    with GradientTracker(model, optimizer, every=3) as tracker:
        for _ in range(7):
            backward(model)
            seen.append(gradient_over_weight(model)["mixer.w"].maximum)
            optimizer.step()
    backward(model)
    optimizer.step()
    history = tracker.history
    assert history.step.tolist() == [0, 3, 6]
    w = history.names.index("mixer.w")
    np.testing.assert_allclose(history.maximum[:, w], seen[::3])
    assert (history.quantiles[:, w, 2] <= history.maximum[:, w]).all()
    assert np.isnan(history.maximum[:, history.names.index("idle.weight")]).all()
    ax = tracker.plot()
    assert ax.get_yscale() == "log"
    assert len(ax.lines) == len(history.names)
    assert tracker.plot(ax) is ax


def test_a_tracker_by_hand() -> None:
    model = Model()
    tracker = GradientTracker(model, recurrent_only=True)
    assert tracker.history.maximum.shape == (0, 3)
    backward(model)
    tracker.update()
    tracker.remove()
    assert tracker.history.names == ("mixer.w", "mixer.frequency", "mixer.log_dt")
    assert tracker.history.quantiles.shape == (1, 3, 3)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"^model: expected gradients \(call loss.backward\(\) first\)"):
        gradient_over_weight(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"^recurrent_only: expected False"):
        gradient_over_weight(nn.LSTM(1, 1), recurrent_only=True)
    with pytest.raises(ValueError, match=r"^every: expected a whole number, at least 1, got 0"):
        GradientTracker(nn.Linear(1, 1), every=0)

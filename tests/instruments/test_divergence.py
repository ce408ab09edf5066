"""The first bad tensor is named: phase, module, step, mode; and a traced model runs as if nobody looked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stablessm as ssm
from stablessm.instruments.divergence import DivergenceError, trace_divergence


class Block(nn.Module):
    """What users write: a norm, a mixer that returns a pair, a head."""

    def __init__(self, mixer: nn.Module, d: int = 2) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"encode": nn.Linear(1, d), "mixer": mixer})
        self.head = nn.Linear(d, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y, _ = self.inner["mixer"](self.inner["encode"](x))
        return {"y": self.head(y)}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def hooks(model: nn.Module) -> int:
    on_modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return on_modules + sum(len(p._backward_hooks or ()) for p in model.parameters())


EIGENVALUES = torch.tensor([-1.0, -0.1, 0.5, -3.0, 0.2])


def unstable(**options: object) -> ssm.RealSSM:
    return ssm.RealSSM(2, 5, 2, map="direct", eigenvalues=EIGENVALUES, **options)


@pytest.mark.parametrize("mode", ["scan", "conv"])
@pytest.mark.parametrize("grad", [True, False])
def test_an_unstable_mode_is_named_with_its_step(mode: str, grad: bool) -> None:
    model, x = Block(unstable(mode=mode)), torch.randn(3, 300, 1)
    mixer = model.inner["mixer"]
    named = pytest.raises(DivergenceError, match=r"'inner\.mixer' \(RealSSM\)")
    with torch.set_grad_enabled(grad), named as caught, trace_divergence(model):
        model(x)
    report = caught.value.report
    # brute force: the recurrence step by step
    state, z, truth = None, model.inner["encode"](x), None
    for t in range(300):
        y, state = mixer.step(z[:, t], state)
        if not y.isfinite().all():
            truth = t, *(int(i) for i in (~y.isfinite()).nonzero()[0])
            break
    assert (report.time, report.batch, report.channel) == truth
    assert report.index == (report.batch, report.time, report.channel)
    assert (report.phase, report.module, report.tensor) == ("forward", "inner.mixer", "output[0]")
    assert report.mode is not None
    assert report.mode.index == (2,)
    assert report.mode.eigenvalue == pytest.approx(0.5)
    assert report.mode.distance == pytest.approx(-0.5)
    assert report.mode.unstable
    assert "stable map" in report.remedy
    assert "mode 2 of 'inner.mixer'" in str(caught.value)
    assert hooks(model) == 0


def test_the_state_says_which_of_two_unstable_modes_it_was() -> None:
    layer = unstable()
    with torch.no_grad():
        layer.B[2] = 0  # the fastest growing mode is never driven
        layer.bias.zero_()
    with trace_divergence(layer, when="record") as trace:
        layer(torch.randn(1, 600, 2))
    assert trace.report.module == ""
    assert trace.report.mode.index == (4,)


def test_a_limit_sees_it_coming() -> None:
    layer, x = unstable(), torch.randn(1, 200, 2)
    with trace_divergence(layer, when="record", limit=1e6) as trace:
        y, _ = layer(x)
    assert y[0, trace.report.time].abs().max() > 1e6
    assert y[0, : trace.report.time].abs().max() <= 1e6
    assert trace.report.value > 1e6


def test_euler_with_a_long_step_is_unstable_though_its_eigenvalues_are_not() -> None:
    layer = ssm.ContinuousRNN(
        1, 3, 1, activation="linear", recurrence="diagonal", dt=1.0, eigenvalues=torch.tensor([-0.5, -2.5, -1.0])
    )
    with trace_divergence(layer, when="record") as trace:
        layer(torch.randn(1, 400, 1))
    assert trace.report.mode.index == (1,)
    assert trace.report.mode.unstable
    assert trace.report.mode.distance > 0
    assert "Euler" in trace.report.remedy


def test_a_dense_recurrence_has_modes_too() -> None:
    layer = ssm.ContinuousRNN(1, 3, 1, activation="linear", eigenvalues=torch.tensor([-0.5, 0.4, -1.0]))
    with trace_divergence(layer, when="record") as trace:
        layer(torch.randn(1, 400, 1))
    assert trace.report.mode.eigenvalue.real == pytest.approx(0.4, abs=1e-4)


def test_an_unstable_mode_upstream_is_suspected() -> None:
    model = Block(ssm.RealSSM(2, 1, 2, map="direct", eigenvalues=torch.tensor([0.05])))
    with torch.no_grad():
        model.head.weight.fill_(1e30)
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(1, 1000, 1))
    assert trace.report.module == "head"
    assert trace.report.mode.module == "inner.mixer"


def test_what_has_not_run_yet_is_not_suspected() -> None:
    slow, fast = (ssm.RealSSM(1, 1, 1, map="direct", eigenvalues=torch.tensor([rate])) for rate in (0.01, 0.02))

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.between, self.second = slow, nn.Linear(1, 1), fast

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.between(self.first(x)[0]))[0]

    model = Blocks()
    with torch.no_grad():
        model.between.weight.fill_(1e38)
    for _ in range(2):
        with trace_divergence(model, when="record") as trace:
            model(torch.full((1, 200, 1), 1e6))
        assert (trace.report.module, trace.report.mode.module) == ("between", "first")


def test_a_bad_parameter_that_a_module_uses_itself_is_named() -> None:
    model = ssm.LanguageModel(vocab_size=5, d_model=4, n_layers=2, d_state=2)
    at = "body.blocks.1.mixer"
    with trace_divergence(model, when="record") as trace:
        with torch.no_grad():
            model.get_submodule(at).filter.fill_(torch.nan)
        model(torch.tensor([[1, 2, 3]]))
    assert (trace.report.phase, trace.report.module, trace.report.tensor) == ("parameter", at, "parameter filter")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_input_is_blamed_on_the_input(bad: float) -> None:
    model, x = Block(ssm.LRU(2, 4, 2)), torch.randn(2, 10, 1)
    x[1, 6] = bad
    with trace_divergence(model, when="record") as trace:
        model(x)
    report = trace.report
    assert (report.phase, report.module, report.tensor, report.mode) == ("input", "", "input[0]", None)
    assert (report.batch, report.time, report.channel) == (1, 6, 0)


def test_a_bad_input_by_keyword() -> None:
    with trace_divergence(nn.Linear(1, 1), when="record") as trace:
        trace._model(input=torch.tensor([[torch.nan]]))
    assert (trace.report.phase, trace.report.tensor) == ("input", "input['input']")


def test_bad_padding_that_does_no_harm_is_no_alarm() -> None:
    layer, x = ssm.LRU(1, 4, 1), torch.randn(2, 10, 1)
    x[0, 5:] = torch.nan
    with trace_divergence(layer, when="record") as trace:
        layer(x, lengths=torch.tensor([5, 10]))[0].sum().backward()
    assert trace.report is None


def test_code_between_modules_is_named_by_its_module() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.log(-self.a(x).square()))

    with trace_divergence(nn.Sequential(Between()), when="record") as trace:
        trace._model(torch.randn(4, 1))
    assert (trace.report.phase, trace.report.module) == ("forward", "0")
    assert trace.report.tensor == "a value on its way into '0.b'"


def test_a_parameter_bad_at_the_start_is_named() -> None:
    model = Block(ssm.RealSSM(2, 5, 2))
    with torch.no_grad():
        model.inner["mixer"].w[3] = torch.nan
    with pytest.raises(DivergenceError, match="parameter w") as caught, trace_divergence(model):
        pass
    report = caught.value.report
    assert (report.phase, report.module, report.index, report.mode.index) == ("parameter", "inner.mixer", (3,), (3,))
    assert hooks(model) == 0


def test_a_parameter_spoilt_by_an_update_is_named() -> None:
    model = Block(ssm.RealSSM(2, 5, 2))
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(1, 5, 1))
        with torch.no_grad():
            model.head.bias[0] = torch.inf
        model(torch.randn(1, 5, 1))
    assert (trace.report.phase, trace.report.module, trace.report.tensor) == ("parameter", "head", "parameter bias")


def test_a_masking_buffer_is_fine_and_a_bad_one_is_not() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    with trace_divergence(model):
        model(torch.randn(4, 2))
    model[0].running_var[1] = torch.nan
    with pytest.raises(DivergenceError, match="buffer running_var"), trace_divergence(model):
        pass


def test_attention_masks_are_no_bad_input() -> None:
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    with torch.no_grad():
        model.norm1.weight.fill_(1e4)
        model.linear1.weight[:, 0] = 1e38
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(2, 5, 4), src_mask=mask)
    assert (trace.report.phase, trace.report.module) == ("forward", "linear1")


def test_an_infinite_slope_is_named() -> None:
    """A finite forward pass, and a gradient that is not."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Function(lambda h: (0 * h).sqrt()), nn.Linear(2, 1))
    with trace_divergence(model, when="record") as trace:
        loss = model(torch.randn(3, 7, 2)).square().sum()
        assert trace.report is None
        loss.backward()
    report = trace.report
    assert (report.phase, report.module, report.kind) == ("gradient", "2", "Function")
    assert report.time == 6  # the latest comes first on the way back
    assert "epsilon" in report.remedy
    with pytest.raises(DivergenceError, match="'2' "), trace_divergence(model):
        model(torch.randn(3, 7, 2)).sum().backward()
    assert hooks(model) == 0


def test_a_bad_loss_is_told_from_a_bad_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with trace_divergence(model, when="record") as trace:
        (0 * model(torch.randn(3, 2))).sqrt().sum().backward()
    assert (trace.report.module, trace.report.tensor) == ("1", "the gradient arriving at output")
    assert trace.report.cause == "loss"
    assert "targets" in trace.report.remedy


def test_a_parameter_gradient_names_its_mode() -> None:
    class Root(nn.Module):
        recurrent_parameters = ("w",)

        def __init__(self) -> None:
            super().__init__()
            self.map = ssm.reparam.get("exp")
            self.w = nn.Parameter(torch.tensor([1.0, 0.0, 2.0]))

        def eigenvalues(self) -> Tensor:
            return self.map(self.w)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w.sqrt()

    with trace_divergence(nn.Sequential(Root()), when="record") as trace:
        trace._model(torch.randn(3, 3)).sum().backward()
    assert trace.report.tensor == "the gradient of parameter w"
    assert (trace.report.module, trace.report.index, trace.report.mode.index) == ("0", (1,), (1,))


@pytest.mark.parametrize("batch_first", [True, False])
def test_lstm(batch_first: bool) -> None:
    model = nn.Sequential(nn.LSTM(1, 3, batch_first=batch_first))
    with trace_divergence(model, when="record") as trace:
        model(torch.randn(2, 8, 1))[0].sum().backward()
    assert trace.report is None
    x = torch.randn(2, 8, 1)
    x[1, 5] = torch.nan
    with trace_divergence(model, when="record") as trace:
        model(x if batch_first else x.transpose(0, 1))
    assert (trace.report.phase, trace.report.tensor) == ("input", "input[0]")
    inner = nn.ModuleList([model[0]])
    with trace_divergence(inner, when="record") as trace:
        model[0](x if batch_first else x.transpose(0, 1))
    assert (trace.report.batch, trace.report.time) == (1, 5)


def test_an_output_nobody_uses_has_no_gradient() -> None:
    model = nn.Sequential(Function(lambda x: torch.std_mean(x * x, 1)))  # one operation, two outputs
    x = torch.randn(2, 5, requires_grad=True)
    with trace_divergence(model) as trace:
        model(x)[0].sum().backward()
    assert trace.report is None
    with pytest.raises(DivergenceError, match="gradient"), trace_divergence(model):
        (0 * model(x)[0]).sqrt().sum().backward()


def test_a_clean_model_runs_as_if_nobody_looked() -> None:
    model, x = nn.Sequential(nn.Linear(1, 2), nn.ReLU(inplace=True), ssm.S4D(2, 4)), torch.randn(2, 20, 1)
    model(x)[0].square().sum().backward()
    truth = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with trace_divergence(model) as trace:
        assert hooks(model) > 0
        y, _ = model(x)
        y.square().sum().backward()
    assert trace.report is None
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), truth, strict=True))
    assert hooks(model) == 0


def test_hooks_go_whatever_happens() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    with pytest.raises(KeyError), trace_divergence(model):
        raise KeyError
    assert hooks(model) == 0
    with trace_divergence(model) as trace:
        y = model(torch.ones(1, 1))
    (y * torch.inf).sum().backward()  # after the block nobody looks any more
    assert trace.report is None


def test_an_exception_the_model_catches_confuses_nothing() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1, 1), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.b(x)
            except RuntimeError:
                return self.a(x) * torch.inf

    with trace_divergence(nn.Sequential(Careful()), when="record") as trace:
        trace._model(torch.ones(1, 1))
    assert (trace.report.phase, trace.report.module) == ("forward", "0")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks(reentrant: bool) -> None:
    """They run again in the backward pass, and may stop half-way."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), nn.Linear(2, 1))
    with trace_divergence(model, when="record") as trace:
        for _ in range(2):
            h = checkpoint(model[1], model[0](torch.randn(3, 2)), use_reentrant=reentrant)
            model[2](h).sum().backward()
        assert trace.report is None
        assert trace._running == []
        model[2](torch.tensor([[torch.nan, 1.0]]))
    assert (trace.report.phase, trace.report.module) == ("input", "2")


@pytest.mark.parametrize("limit", [None, 1e5])
def test_what_is_found_in_a_checkpointed_block_does_not_stop_the_backward_pass(limit: float | None) -> None:
    """Nothing may be saved for the backward pass by the search for the cause."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * 1e38 * 1e38)

    model = nn.Sequential(nn.Linear(2, 2), Between())
    with trace_divergence(model, when="record", limit=limit) as trace:
        checkpoint(model[1], model[0](torch.ones(3, 2)), use_reentrant=False).sum().backward()
    assert (trace.report.module, trace.report.tensor) == ("1", "a value on its way into '1.inner'")


@pytest.mark.parametrize("place", ["outer", "inner", "in place"])
def test_compiled_modules(place: str) -> None:
    model = nn.Sequential(nn.Linear(1, 1), Function(lambda x: x / 0))
    if place == "outer":
        model = torch.compile(model, backend="eager")
    elif place == "inner":
        model[1] = torch.compile(model[1], backend="eager")
    else:
        model.compile(backend="eager")
    model(torch.ones(1, 1))
    with trace_divergence(model, when="record") as trace:
        model(torch.ones(1, 1))
    if place == "inner":
        assert trace.report.module == "1"
    elif place == "outer":
        assert trace.report.module == ""


def test_whole_numbers_and_complex_ones() -> None:
    model = nn.Sequential(Function(lambda x: torch.complex(x, x / 0)))
    with trace_divergence(model, when="record") as trace:
        nn.Sequential(Function(lambda x: x.long()))(torch.ones(1))
        model(torch.ones(2, 3, 4))
    assert (trace.report.module, trace.report.time) == ("0", 0)


@pytest.mark.parametrize(("name", "options"), [("when", {"when": "never"}), ("limit", {"limit": 0.0})])
def test_bad_options(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        trace_divergence(nn.Linear(1, 1), **options)

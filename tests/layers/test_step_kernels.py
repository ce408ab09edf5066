"""The kernels of one step and of the factors of a recurrence, on a GPU or in Triton's interpreter, against PyTorch."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stablessm as ssm
from stablessm import reparam
from stablessm.layers import at_once, factors
from stablessm.layers.factor_kind import NAMES, Kind
from stablessm.models import LanguageModel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor Triton's interpreter"
)
pytest.importorskip("triton")
LAYERS = {
    "s4d": lambda: ssm.S4D(10, 5),
    "s4d-bilinear": lambda: ssm.S4D(3, 9, discretization="bilinear"),
    "real": lambda: ssm.RealSSM(4, 6, 3, skip=True, activation="tanh"),
    "real-discrete": lambda: ssm.RealSSM(4, 6, 3, time="discrete", bias=False),
    "real-average": lambda: ssm.RealSSM(4, 6, 3, average=True),
    "real-average-discrete": lambda: ssm.RealSSM(4, 6, 3, time="discrete", average=True),
    "real-large": lambda: ssm.RealSSM(65, 70, 130),
    "lru-large": lambda: ssm.LRU(65, 40, 130),
    "lru": lambda: ssm.LRU(4, 6, 3),
    "lru-bare": lambda: ssm.LRU(4, 6, 3, skip=False, normalize=False, map="exp"),
}
MODELS = {
    "hyena-real": {"mixer": "hyena-real"},
    "hyena-s4d": {"mixer": "hyena-s4d"},
    "hyena-lru": {"mixer": "hyena-lru"},
    "gate": {"mixer": "s4d", "gate": True, "mlp": 0},
    "post": {"mixer": "hyena-real", "prenorm": False},
}


def use(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Choose the kernels ("triton") or plain operations ("reference") in the files that have both."""
    for module in (at_once, factors):
        monkeypatch.setattr(module, "resolve", lambda *_: backend)


def tensors(state: object) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [t for part in state for t in tensors(part)]  # type: ignore[attr-defined]


def close(ours: list[Tensor], truth: list[Tensor], tolerance: float = 2e-6) -> None:
    assert len(ours) == len(truth)
    for one, other in zip(ours, truth, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        scale = float(other.abs().max()) + 1e-30
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)


def two_steps(model: torch.nn.Module, *inputs: Tensor) -> list[Tensor]:
    state: object = None
    found = []
    with torch.no_grad():
        for x_t in inputs:
            y, state = model.step(x_t, state)  # type: ignore[operator]
            found.append(y)
    return [*found, *tensors(state)]


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_a_layer(name, rows, monkeypatch):
    torch.manual_seed(0)
    layer = LAYERS[name]().to(DEVICE)
    inputs = torch.randn(2, rows, layer.d_input, device=DEVICE).unbind()
    use(monkeypatch, "reference")
    truth = two_steps(layer, *inputs)
    use(monkeypatch, "triton")
    close(two_steps(layer, *inputs), truth)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_a_language_model(name, monkeypatch):
    torch.manual_seed(0)
    model = LanguageModel(30, d_model=12, n_layers=1, d_state=5, **MODELS[name]).to(DEVICE).eval()
    inputs = torch.randint(0, 30, (2, 3), device=DEVICE).unbind()
    use(monkeypatch, "reference")
    truth = two_steps(model, *inputs)
    use(monkeypatch, "triton")
    close(two_steps(model, *inputs), truth)


def test_hooks_gradients_autocast_and_other_modules_use_plain_operations(monkeypatch):
    use(monkeypatch, "triton")
    model = LanguageModel(9, d_model=4, n_layers=1, d_state=2).to(DEVICE).eval()
    token = torch.tensor([1], device=DEVICE)
    block, x = model.body.blocks[0], torch.randn(1, 4, device=DEVICE)
    with torch.no_grad():
        assert block._runs_at_once(x)
        assert not block._runs_at_once(x.double())
        with torch.autocast(DEVICE.type, torch.bfloat16):
            assert not block._runs_at_once(x)
        seen: list[Tensor] = []
        handle = block.wide.register_forward_hook(lambda *args: seen.append(args[2]))
        model.step(token)
        assert len(seen) == 1
        handle.remove()
        assert not block.train()._runs_at_once(x)
    y, _ = model.eval().step(token)
    y.sum().backward()
    assert block.wide.weight.grad is not None


@pytest.mark.parametrize("rows", [1, 5])
def test_a_linear_map_with_everything_around_it(rows):
    from stablessm.layers.triton_linear import linear

    torch.manual_seed(0)
    terms, columns, others = 37, 50, 21
    shapes = (rows, terms), (columns, terms), (columns,), (terms,), (terms,), (rows, terms), (rows, others)
    x, weight, bias, scale, shift, times, second = (torch.randn(shape, device=DEVICE) for shape in shapes)
    other, onto = torch.randn(columns, others, device=DEVICE), torch.randn(rows, columns, device=DEVICE)
    found = linear(
        x, weight, bias, norm=(scale, shift, 1e-5), times=times, gelu=True, second=(second, other), onto=onto
    )
    normal = F.layer_norm(x.double(), (terms,), scale.double(), shift.double())
    truth = (normal * times) @ weight.double().T + second.double() @ other.double().T + bias
    close([found.double()], [onto + F.gelu(truth)])
    close([linear(x, weight).double()], [x.double() @ weight.double().T])


def layer_of(form: str, name: str) -> torch.nn.Module:
    if form == "s4d":
        return ssm.S4D(5, 3, map=name)
    if form == "lru":
        return ssm.LRU(2, 5, 2, map=name)
    time = "discrete" if form.endswith("discrete") else "continuous"
    return ssm.RealSSM(2, 5, 2, map=name, time=time, average=form.startswith("average"))


CASES = [(form, name) for form in ("s4d", "real", "average") for name in NAMES["continuous"]]
CASES += [(form, name) for form in ("lru", "real-discrete", "average-discrete") for name in NAMES["discrete"]]


def factors_and_gradients(layer: torch.nn.Module) -> list[Tensor]:
    layer.zero_grad()
    decay, gain = layer._factors(None)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(3)
    parts = [torch.view_as_real(part) if part.is_complex() else part for part in (decay, gain)]
    loss = sum((part * torch.randn(part.shape, generator=generator).to(DEVICE)).sum() for part in parts)
    loss.backward()
    names = layer.recurrent_parameters
    return [decay.detach(), gain.detach(), *(layer.get_parameter(name).grad.clone() for name in names)]  # type: ignore[union-attr]


@pytest.mark.parametrize(("form", "name"), CASES)
def test_factors_of_every_map(form, name, monkeypatch):
    """Values and gradients, at weights on both sides of a kink; |λ| < 1 for the gain of the LRU."""
    torch.manual_seed(0)
    layer = layer_of(form, name).to(DEVICE)
    torch.nn.init.uniform_(layer.w, -0.9, 0.9)
    if name == "softplus":
        layer.w.data.flatten()[0] = -25.0
    use(monkeypatch, "reference")
    truth = factors_and_gradients(layer)
    use(monkeypatch, "triton")
    assert factors.computed_at_once(layer._weights_of_factors()) is not None
    close(factors_and_gradients(layer), truth)


@pytest.mark.parametrize("form", ["lru", "average", "average-discrete"])
def test_second_derivatives_of_factors(form, monkeypatch):
    found = []
    for backend in ("reference", "triton"):
        torch.manual_seed(0)
        layer = layer_of(form, "best").to(DEVICE)
        use(monkeypatch, backend)
        decay, gain = layer._factors(None)
        loss = decay.real.square().sum() + gain.square().sum()
        (first,) = torch.autograd.grad(loss, layer.w, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [layer.w]))
    close(list(found[1]), list(found[0]), 1e-5)


def test_maps_of_a_user_have_no_kernel():
    class Own(reparam.Reparameterization):
        name, time = "own", "continuous"

        def __call__(self, w: Tensor) -> Tensor:
            return -w.cosh()

        def inverse(self, eigenvalues: Tensor) -> Tensor:
            return (-eigenvalues).acosh()

    assert Kind.of(Own()) is None
    assert all(Kind.of(reparam.get(name, time)) for time in NAMES for name in NAMES[time])
    assert tuple(NAMES["discrete"]) == reparam.names("discrete")

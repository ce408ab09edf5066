"""Exported sequences give the numbers of the forward pass for any batch and length, and carry states."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from random_parameters import randomized
from streaming_models import MODELS, forward, make, relative_error, width
from torch import Tensor, nn
from torch.export import Dim

import stablessm as ssm
from stablessm.streaming.freeze import freeze
from stablessm.streaming.sequence_module import SequenceModule

SIZES = ((1, 1), (3, 1), (1, 40), (2, 65))
"""Batch and time; exported with others."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
BOTH = {
    "both ways": lambda: ssm.Bidirectional(ssm.LRU(3, 8, 2)),
    "both ways, summed": lambda: ssm.Bidirectional(ssm.RealSSM(3, 5, 2), ssm.LRU(3, 4, 2), merge="sum"),
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    if name not in BOTH:
        return make(name, dtype)
    torch.manual_seed(0)
    return randomized(BOTH[name]()).to(dtype).eval()


def zeros(module: SequenceModule, x: Tensor) -> tuple[Tensor, ...]:
    return module.initial_state(len(x))


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("name", [*MODELS, *BOTH])
@torch.no_grad()
def test_the_module_gives_the_numbers_of_forward_in_chunks_too(name, loops):
    model = model_of(name, torch.float64)
    module = SequenceModule(freeze(model, whole=True), loops=loops)
    x = torch.randn(2, 67, width(model), dtype=torch.float64)
    y, *final = module(x, *zeros(module, x))
    assert relative_error(y, forward(model, x)) <= 1e-12
    if name in BOTH:
        return
    parts, states = [], zeros(module, x)
    for chunk in x.split([30, 1, 36], 1):
        part, *states = module(chunk, *states)
        parts.append(part)
    assert relative_error(torch.cat(parts, 1), y) <= 1e-12
    assert all(relative_error(*pair) <= 1e-12 for pair in zip(states, final, strict=True))


@settings(max_examples=15)
@given(
    layer=st.sampled_from(["real", "lru", "s4d", "rnn"]),
    map=st.sampled_from(["best", "exp", "softplus", "direct"]),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4)),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 100)),
    dtype=st.sampled_from(list(TOLERANCE)),
    loops=st.booleans(),
    seed=st.integers(0, 2**16),
)
@torch.no_grad()
def test_random_layers_from_random_states(layer, map, sizes, shape, dtype, loops, seed):
    torch.manual_seed(seed)
    d_input, d_state, _ = sizes
    build = {
        "real": lambda: ssm.RealSSM(*sizes, map=map, dt=0.3, activation="tanh"),
        "lru": lambda: ssm.LRU(*sizes, map=map),
        "s4d": lambda: ssm.S4D(d_input, d_state, map=map),
        "rnn": lambda: ssm.ContinuousRNN(*sizes, recurrence="diagonal", map=map, dt=0.1, solver="exponential"),
    }
    model = build[layer]().to(dtype)
    x = torch.randn(*shape, d_input, dtype=dtype)
    _, state = model(torch.randn(*shape, d_input, dtype=dtype))
    y, final = model(x, state)
    module = SequenceModule(freeze(model, whole=True), loops=loops)
    ours, after = module(x, torch.view_as_real(state) if state.is_complex() else state)
    assert relative_error(ours, y) <= 20 * TOLERANCE[dtype]
    after = torch.view_as_complex(after) if state.is_complex() else after
    assert relative_error(after, final) <= 20 * TOLERANCE[dtype]


def check_torch(name: str, path) -> None:
    model = model_of(name, torch.float64)
    exported = ssm.export_sequence(model, path)
    assert not any("stablessm" in str(node.target) for node in exported.graph.nodes)
    assert not any(tensor.is_complex() for tensor in exported.state_dict.values())
    run = torch.export.load(path).module()
    for batch, steps in SIZES:
        x = torch.randn(batch, steps, width(model), dtype=torch.float64)
        states = (torch.zeros(batch, *state.shape[1:]).to(x) for state in exported.example_inputs[0][1:])
        assert relative_error(run(x, *states)[0], forward(model, x)) <= 1e-12


def check_onnx(model: nn.Module, path, sample) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    ssm.export_sequence(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    first, *others = session.get_inputs()
    assert [first.name, *first.shape[:2]] == ["x", "batch", "time"]
    assert [port.name for port in session.get_outputs()] == ["y", *(f"next_{port.name}" for port in others)]
    for batch, steps in SIZES:
        x, outputs = sample(batch, steps), []
        states = {port.name: torch.zeros(batch, *port.shape[1:]).numpy() for port in others}
        for chunk in x.split([-(-steps // 2), steps // 2] if steps > 1 and not has_both(model) else [steps], 1):
            y, *states_after = session.run(None, {"x": chunk.numpy(), **states})
            states = dict(zip(states, states_after, strict=True))
            outputs.append(torch.from_numpy(y))
        assert relative_error(torch.cat(outputs, 1), forward(model, x)) <= 1e-5


def has_both(model: nn.Module) -> bool:
    return any(isinstance(module, ssm.Bidirectional) for module in model.modules())


def test_torch_export(tmp_path):
    check_torch("rnn-tanh", tmp_path / "sequence.pt2")


def test_onnxruntime(tmp_path):
    model = model_of("real")
    check_onnx(model, tmp_path / "sequence.onnx", lambda *shape: torch.randn(*shape, width(model)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *BOTH])
def test_torch_export_of_every_model(name, tmp_path):
    check_torch(name, tmp_path / "sequence.pt2")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *BOTH])
def test_onnxruntime_of_every_model(name, tmp_path):
    model = model_of(name)
    check_onnx(model, tmp_path / "sequence.onnx", lambda *shape: torch.randn(*shape, width(model)))


@pytest.mark.slow
def test_tokens_in_onnxruntime(tmp_path):
    torch.manual_seed(0)
    model = randomized(ssm.models.LanguageModel(11, d_model=8, n_layers=2, d_state=4)).eval()
    check_onnx(model, tmp_path / "sequence.onnx", lambda *shape: torch.randint(0, 11, shape))


DIRECT = {
    "real": lambda mode: ssm.RealSSM(3, 5, 2, dt=0.1, mode=mode),
    "lru": lambda mode: ssm.LRU(3, 4, 2, mode=mode),
    "s4d": lambda mode: ssm.S4D(3, 4, mode=mode),
    "rnn": lambda mode: ssm.ContinuousRNN(3, 5, 2, dt=0.1),
    "both ways": lambda mode: ssm.Bidirectional(ssm.LRU(3, 4, 2, mode=mode)),
    **{kind: lambda mode, kind=kind: getattr(ssm, kind)(3, 4) for kind in ("MinGRU", "MinLSTM", "SelectiveSSM")},
    **{kind: lambda mode, kind=kind: getattr(ssm, kind)(3) for kind in ("RGLRU", "HGRN")},
    "selective model": lambda mode: ssm.SequenceRegressor(2, d_input=3, d_model=4, mixer="selective", n_layers=1),
    "classifier": lambda mode: ssm.models.SequenceClassifier(4, d_input=3, d_model=8, n_layers=1, d_state=4),
    "regressor": lambda mode: ssm.models.SequenceRegressor(2, d_input=3, d_model=8, mixer="hyena-lru", n_layers=1),
    "language model": lambda mode: ssm.models.LanguageModel(11, d_model=8, n_layers=1, d_state=4),
}


def check_exported_by_hand(name: str, mode: str) -> None:
    """``torch.export.export`` of the module itself."""
    torch.manual_seed(0)
    model = DIRECT[name](mode).eval()
    sample = (lambda *shape: torch.randint(0, 11, shape)) if name == "language model" else (
        lambda *shape: torch.randn(*shape, 3)
    )  # fmt: skip
    exported = torch.export.export(model, (sample(2, 5),), dynamic_shapes=({0: Dim("batch"), 1: Dim("time")},))
    assert not any("stablessm" in str(node.target) for node in exported.graph.nodes)
    for shape in SIZES:
        x = sample(*shape)
        ours, truth = (run(x) for run in (exported.module(), model))
        ours, truth = (y[0] if isinstance(y, tuple) else y for y in (ours, truth))
        assert relative_error(ours, truth) <= 1e-5


@pytest.mark.parametrize("name", ["real", "SelectiveSSM"])
def test_torch_export_of_a_layer_itself(name):
    check_exported_by_hand(name, "conv")


def test_every_layer_is_exported_itself():
    tested = {type(make("scan")).__name__ for make in DIRECT.values()}
    assert {name for name in ssm.layers.__all__ if name[0].isupper()} - {"SequenceLayer"} <= tested


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["scan", "conv"])
@pytest.mark.parametrize("name", DIRECT)
def test_torch_export_of_every_module_itself(name, mode):
    check_exported_by_hand(name, mode)


def test_a_step_of_both_directions_is_refused():
    with pytest.raises(ssm.ArgumentError, match=r"model: expected a model that reads forward in time.*export_sequence"):
        ssm.export_step(ssm.Bidirectional(ssm.LRU(3, 8, 2)))

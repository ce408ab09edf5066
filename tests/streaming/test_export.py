"""An exported step, run by PyTorch or by onnxruntime, gives the numbers of the forward pass."""

from __future__ import annotations

import sys

import fresh_process
import pytest
import torch
from random_parameters import randomized
from streaming_models import MODELS, forward, make, relative_error, width
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, BackendUnavailableError
from stablessm.streaming.freeze import freeze
from stablessm.streaming.step_module import StepModule

STEPS = 200
EXPORTED = ["real-discrete", "s4d", "rnn-diagonal-sigmoid", "filters-dense", "classifier-last", "long", "selective"]
"""Models with all operations between them; the others are exported by the slow tests."""
ONNX = ["rnn-diagonal-sigmoid", "filters-dense"]  # and a language model, below
ONNX_TOO = [
    "selective",
    "min-lstm",
    "hgrn",
    "classifier",
    "real-discrete",
    "s4d",
    "real",
    "lru",
    "rnn-tanh",
    "mlp",
    "two layers",
]
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


def stepped(step, x: Tensor, *states: Tensor) -> tuple[Tensor, list[Tensor]]:
    outputs = []
    for x_t in x.unbind(1):
        y_t, *states = step(x_t, *states)
        outputs.append(y_t)
    return torch.stack(outputs, 1), states


def through_onnxruntime(path, x: Tensor) -> Tensor:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    first, *others = session.get_inputs()
    assert first.name == "x"
    assert [port.name for port in session.get_outputs()] == ["y", *(f"next_{port.name}" for port in others)]
    states = [torch.zeros(len(x), *port.shape[1:], dtype=getattr(torch, _DTYPES[port.type])) for port in others]

    def step(x_t: Tensor, *states: Tensor) -> list[Tensor]:
        named = dict(zip((port.name for port in (first, *others)), (x_t, *states), strict=True))
        results = session.run(None, {name: value.numpy() for name, value in named.items()})
        return [torch.from_numpy(result) for result in results]

    return stepped(step, x, *states)[0]


@pytest.mark.parametrize("name", [*ONNX, *(pytest.param(name, marks=pytest.mark.slow) for name in ONNX_TOO)])
def test_onnxruntime_gives_the_numbers_of_forward(name, tmp_path):
    pytest.importorskip("onnxscript")
    model = make(name)
    ssm.export_step(model, tmp_path / "step.onnx", format="onnx")
    x = torch.randn(1, STEPS, width(model))
    assert relative_error(through_onnxruntime(tmp_path / "step.onnx", x), forward(model, x)) <= 1e-5


@pytest.mark.parametrize("name", ["lru", "min-gru", "selective"])
def test_onnx_in_double_precision_and_batches(name, tmp_path):
    pytest.importorskip("onnxscript")
    model = make(name, torch.float64)
    ssm.export_step(model, tmp_path / "step.onnx", format="onnx")
    for batch in (1, 4):
        x = torch.randn(batch, 100, width(model), dtype=torch.float64)
        assert relative_error(through_onnxruntime(tmp_path / "step.onnx", x), forward(model, x)) <= 1e-12


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_number_of_streams_can_be_fixed(format, tmp_path, recwarn, capfd):
    """And the exporter is quiet, and the format is what the path ends in."""
    if format == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        ssm.export_step(ssm.S4D(3, 2), tmp_path / "step.onnx", batch=5)
        assert not list(recwarn)
        assert capfd.readouterr() == ("", "")
        assert [path.name for path in tmp_path.iterdir()] == ["step.onnx"]
        session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
        assert [port.shape for port in session.get_inputs()] == [[5, 3], [5, 3, 2, 2]]
    else:
        step = ssm.export_step(ssm.S4D(3, 2), batch=1).module()
        with pytest.raises(AssertionError):
            step(torch.zeros(2, 3), torch.zeros(2, 3, 2, 2))


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_tokens_go_in_as_whole_numbers(format, tmp_path):
    torch.manual_seed(0)
    model = randomized(ssm.models.LanguageModel(11, d_model=8, n_layers=1, d_state=4)).eval()
    tokens = torch.randint(0, 11, (2, 40))
    if format == "onnx":
        pytest.importorskip("onnxscript")
        ssm.export_step(model, tmp_path / "step.onnx", format="onnx")
        y = through_onnxruntime(tmp_path / "step.onnx", tokens)
    else:
        exported = ssm.export_step(model)
        states = (torch.zeros_like(example) for example in exported.example_inputs[0][1:])
        y, _ = stepped(exported.module(), tokens, *states)
    assert relative_error(y, forward(model, tokens)) <= 1e-5


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_step_that_is_exported_gives_the_numbers_of_forward(name):
    model = make(name, torch.float64)
    step = StepModule(freeze(model))
    for batch in (1, 3):
        x = torch.randn(batch, 30, width(model), dtype=torch.float64)
        y, _ = stepped(step, x, *step.initial_state(batch))
        assert relative_error(y, forward(model, x)) <= 1e-12


@pytest.mark.parametrize(
    "name", [name if name in EXPORTED else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_torch_export_gives_the_numbers_of_forward(name, tmp_path):
    model = make(name, torch.float64)
    exported = ssm.export_step(model, tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    for batch in (1, 3):
        x = torch.randn(batch, 30, width(model), dtype=torch.float64)
        states = (torch.zeros(batch, *example.shape[1:], dtype=x.dtype) for example in exported.example_inputs[0][1:])
        y, _ = stepped(step, x, *states)
        assert relative_error(y, forward(model, x)) <= 1e-12


@pytest.mark.parametrize("name", ["real", "lru", "s4d"])
def test_states_are_the_layers_own_as_pairs(name):
    layer = make(name, torch.float64)
    x = torch.randn(1, 40, layer.d_input, dtype=torch.float64)
    with torch.no_grad():
        _, state = layer(x[:, :20])
        y, final = layer(x[:, 20:], state)
    pairs = torch.view_as_real(state) if state.is_complex() else state
    ours, (after,) = stepped(ssm.export_step(layer).module(), x[:, 20:], pairs)
    assert relative_error(ours, y) <= 1e-12
    assert relative_error(torch.view_as_complex(after) if state.is_complex() else after, final) <= 1e-12


def test_nothing_complex_is_left():
    exported = ssm.export_step(make("s4d"))
    assert not any(tensor.is_complex() for tensor in exported.state_dict.values())
    values = (node.meta.get("val") for node in exported.graph.nodes)
    assert not any(value.is_complex() for value in values if isinstance(value, torch.Tensor))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackendUnavailableError, match=r"onnx is not installed \(pip install 'stablessm\[export\]'\)"):
        ssm.export_step(ssm.LRU(1, 2, 1), format="onnx")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ssm.export_step(ssm.LRU(1, 2, 1), format="tflite"), "format: expected 'torch' or 'onnx'"),
        (lambda: ssm.export_step(ssm.LRU(1, 2, 1), batch=0), "batch: expected a whole number"),
        (lambda: ssm.export_step(nn.LSTM(1, 1)), "model: expected RealSSM.*got LSTM"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_importing_needs_none_of_them():
    code = "import stablessm.streaming, sys; sys.exit(any(name.startswith('onnx') for name in sys.modules))"
    assert fresh_process.run(code).returncode == 0

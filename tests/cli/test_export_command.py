from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import stablessm as ssm
from stablessm.cli import app
from stablessm.cli.export import standardization


def export(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_a_saved_layer(tmp_path):
    layer = ssm.LRU(3, 8, 2)
    ssm.save(layer, tmp_path / "layer")
    assert "written" in export(tmp_path / "layer", tmp_path / "step.pt2", "--batch", 2)
    step = torch.export.load(tmp_path / "step.pt2").module()
    x_t = torch.randn(2, 3)
    y_t, _ = step(x_t, torch.zeros(2, 8, 2))
    assert torch.allclose(y_t, layer.step(x_t)[0], atol=1e-6)


def test_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    ssm.save(ssm.S4D(3, 4), tmp_path / "layer")
    export(tmp_path / "layer", tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    assert [port.shape for port in session.get_inputs()] == [["batch", 3], ["batch", 3, 4, 2]]


@pytest.mark.slow  # tests/streaming/test_export.py exports classifiers, the tests above and below use the command
def test_a_saved_network(tmp_path):
    model = ssm.models.SequenceClassifier(4, d_input=3, d_model=8, n_layers=1, d_state=4).eval()
    ssm.save(model, tmp_path / "model")
    export(tmp_path / "model", tmp_path / "step.pt2")
    exported = torch.export.load(tmp_path / "step.pt2")
    states = [torch.zeros_like(example[:1]) for example in exported.example_inputs[0][1:]]
    x = torch.randn(1, 30, 3)
    for x_t in x.unbind(1):
        y_t, *states = exported.module()(x_t, *states)
    assert torch.allclose(y_t, model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "scale", "what", "stored"),
    [
        (
            {"window": 4, "horizon": 2},
            {"load": {"mean": 3.0, "deviation": 2.0}},
            "inputs and outputs are standardized",
            {
                "inputs": {"load": {"mean": 3.0, "deviation": 2.0}},
                "outputs": {f"load+{step}": {"mean": 3.0, "deviation": 2.0} for step in (1, 2)},
            },
        ),
        (
            {},
            {"mean": [3.0], "deviation": [2.0]},
            "inputs are standardized",
            {"inputs": {"mean": [3.0], "deviation": [2.0]}},
        ),
        ({}, {}, "", None),
    ],
)
def test_the_units_of_a_run_are_told_and_stored(tmp_path, options, scale, what, stored):
    ssm.save(ssm.RealSSM(1, 4, 1), tmp_path / "model")
    task = {"task": "series", "options": options, "scale": scale}
    settings = {"config": {}, "task": task, "model": {}, "origin": {}}
    (tmp_path / "training.json").write_text(json.dumps(settings), encoding="utf-8")
    for folder in (tmp_path, tmp_path / "model"):
        result = CliRunner().invoke(app, ["export", str(folder), str(tmp_path / "step.pt2"), "--json"])
        assert json.loads(result.stdout)["standardization"] == stored
        assert not what or f"{what}: (value - mean) / deviation, with the numbers stored in" in result.stderr
        assert ("standardized" in result.stderr) == bool(what)
    found = {"standardization": ""}
    torch.export.load(tmp_path / "step.pt2", extra_files=found)
    assert json.loads(found["standardization"] or "null") == stored


def test_the_scale_of_images_is_read_from_the_task(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (20, 28, 28), dtype=np.uint8), rng.integers(0, 10, 20)
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    task = ssm.tasks.get("mnist")
    settings = {"config": {}, "task": task.describe(), "model": {}, "origin": {"task": "mnist", "options": {}}}
    (tmp_path / "training.json").write_text(json.dumps(settings), encoding="utf-8")
    found = standardization(tmp_path)["inputs"]
    assert (found["mean"][0], found["deviation"][0]) == pytest.approx((x.mean(), x.std()), rel=1e-5)
    (tmp_path / "mnist.npz").unlink()
    assert standardization(tmp_path) == {}
    assert "the inputs may be standardized, but the training data cannot be read" in capsys.readouterr().err


def test_the_folder_of_a_fit(tmp_path):
    es = ssm.constructions.ExponentialSum(np.array([-0.5, -0.1]), np.array([1.0, 0.5]), 1.0, 50)
    es.save(tmp_path / "fit" / "sum.safetensors")
    assert "RealSSM with 2 states in float32" in export(tmp_path / "fit", tmp_path / "step.pt2")
    step, y, state = torch.export.load(tmp_path / "step.pt2").module(), [], torch.zeros(1, 2)
    for x in [1.0] + 9 * [0.0]:
        y_t, state = step(torch.tensor([[x]]), state)
        y.append(y_t.item())
    np.testing.assert_allclose(y, es(np.arange(10)), atol=1e-6)
    measured = CliRunner().invoke(
        app, ["measure", str(tmp_path / "fit" / "sum.safetensors"), "--out", str(tmp_path / "m")]
    )
    assert measured.exit_code == 0, measured.output
    (tmp_path / "fit" / "sum.safetensors").write_bytes(b"damaged")
    assert "MODEL: expected a complete folder of stablessm fit" in export(tmp_path / "fit", tmp_path / "a.pt2", code=2)


def test_whole_sequences(tmp_path):
    layer = ssm.RealSSM(3, 8, 2)
    ssm.save(layer, tmp_path / "layer")
    export(tmp_path / "layer", tmp_path / "sequence.pt2", "--kind", "sequence")
    x = torch.randn(4, 50, 3)
    y, _ = torch.export.load(tmp_path / "sequence.pt2").module()(x, torch.zeros(4, 8))
    assert torch.allclose(y, layer(x)[0], atol=1e-5)


def test_errors(tmp_path):
    ssm.save(ssm.LRU(3, 8, 2), tmp_path / "layer")
    assert "PATH: expected a file that ends in .onnx or .pt2" in export(tmp_path / "layer", "step.h5", code=2)
    wrong = ("--kind", "frame"), ("--kind", "sequence", "--batch", 2)
    told = [export(tmp_path / "layer", tmp_path / "step.pt2", *options, code=2) for options in wrong]
    assert "--kind: expected one of step, sequence" in told[0]
    assert "--batch-size: expected no value, since --kind sequence takes any number of sequences" in told[1]
    assert "no such folder" in export(tmp_path / "nothing", "step.pt2", code=2)
    ssm.save(ssm.Bidirectional(ssm.LRU(3, 8, 2)), tmp_path / "both")
    assert "got Bidirectional" in export(tmp_path / "both", tmp_path / "step.pt2", code=2)
    assert not (tmp_path / "step.pt2").exists()


def test_a_path_that_cannot_be_written(tmp_path):
    ssm.save(ssm.LRU(3, 8, 2), tmp_path / "layer")
    (tmp_path / "folder.pt2").mkdir()
    assert "PATH: expected a file, got" in export(tmp_path / "layer", tmp_path / "folder.pt2", code=2)
    missing = export(tmp_path / "layer", tmp_path / "missing" / "a.pt2", code=2)
    assert "PATH: expected a file in an existing folder" in missing
    assert not (tmp_path / "missing").exists()
    assert "cannot export" in export(tmp_path / "layer", tmp_path / "layer" / "config.json" / "a.pt2", code=2)

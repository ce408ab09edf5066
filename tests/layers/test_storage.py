from __future__ import annotations

import json

import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError

LAYERS = {
    "real": lambda: ssm.RealSSM(2, 5, 3, map=ssm.reparam.get("best", a=2.0, b=0.25), dt=0.3, activation="tanh"),
    "real-discrete": lambda: ssm.RealSSM(1, 4, 1, map="softplus", time="discrete", bias=False, skip=True),
    "lru": lambda: ssm.LRU(3, 6, 2, map="tanh", normalize=False),
    "s4d": lambda: ssm.S4D(3, 4, map="softplus", init="inv", discretization="bilinear"),
    "rnn-dense": lambda: ssm.ContinuousRNN(2, 4, 1, map="skew_minus_psd", dt=0.2, solver="exponential"),
    "rnn-diagonal": lambda: ssm.ContinuousRNN(2, 4, 1, recurrence="diagonal", map="exp", activation="relu"),
    "both-ways": lambda: ssm.Bidirectional(ssm.LRU(3, 4, 2), ssm.LRU(3, 5, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_as_it_was(tmp_path, name, dtype):
    layer = LAYERS[name]().to(dtype)
    ssm.save(layer, tmp_path / "layer")
    again = ssm.load(tmp_path / "layer")
    assert repr(again) == repr(layer)
    d_input = layer.ahead.d_input if name == "both-ways" else layer.d_input
    x = torch.randn(2, 9, d_input, dtype=dtype)
    torch.testing.assert_close(again(x)[0], layer(x)[0], rtol=0, atol=0)
    assert {p.name for p in (tmp_path / "layer").iterdir()} == {"config.json", "model.safetensors"}


def test_shared_weights_stay_shared(tmp_path):
    layer = ssm.LRU(3, 8, 2)
    ssm.save(ssm.Bidirectional(layer, layer), tmp_path)
    again = ssm.load(tmp_path)
    assert again.back is again.ahead
    x = torch.randn(2, 5, 3)
    assert torch.equal(again(x)[0], ssm.Bidirectional(layer, layer)(x)[0])


def test_the_start_is_kept(tmp_path):
    for layer in (
        ssm.RealSSM(1, 2, 1, eigenvalues=torch.tensor([-0.5, -0.1])),
        ssm.LRU(1, 2, 1, eigenvalues=torch.tensor([0.5 + 0.1j, 0.2 - 0.7j])),
    ):
        ssm.save(layer, tmp_path)
        again = ssm.load(tmp_path)
        assert ssm.report_modes(again).intact()
        again.reset_parameters()
        torch.testing.assert_close(again.eigenvalues(), layer.eigenvalues())


def test_a_map_nobody_knows_is_refused_before_anything_is_written(tmp_path):
    class Mine(ssm.reparam.Reparameterization):
        name, time = "mine", "continuous"

        def __call__(self, w):
            return -w.cosh()

        def inverse(self, eigenvalues):
            return (-eigenvalues).acosh()

    with pytest.raises(ArgumentError, match=r"layer: expected a map that reparam\.get knows"):
        ssm.save(ssm.RealSSM(1, 2, 1, map=Mine(), eigenvalues=-torch.tensor([2.0, 3.0])), tmp_path / "layer")
    assert not (tmp_path / "layer").exists()


def test_every_exported_layer_can_be_saved():
    from stablessm.layers.storage import CLASSES

    exported = {n for n in ssm.layers.__all__ if isinstance(getattr(ssm.layers, n), type)} - {"SequenceLayer"}
    assert exported == set(CLASSES)


def test_only_our_folders_and_layers(tmp_path):
    with pytest.raises(ArgumentError, match="layer: expected one of RealSSM"):
        ssm.save(torch.nn.Linear(2, 2), tmp_path / "linear")
    assert not (tmp_path / "linear").exists()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    with pytest.raises(ArgumentError, match="folder"):
        ssm.load(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ssm.ArgumentError, match=r"^folder: expected a folder, got .*file, a file"):
        ssm.save(ssm.LRU(1, 2, 1), tmp_path / "file")


def test_any_bit_of_the_weights_is_blamed_on_the_weights(tmp_path):
    ssm.save(ssm.RealSSM(2, 3, 2), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for place in range(8, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ssm.ArgumentError, match=r"model\.safetensors: expected"):
            ssm.load(tmp_path)

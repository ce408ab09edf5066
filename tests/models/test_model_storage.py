from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import stablessm as ssm
from stablessm import ArgumentError, models, record
from stablessm.cli import app
from stablessm.models import mixers

MODELS = {
    "classifier": lambda: models.SequenceClassifier(
        3, d_input=2, d_model=8, d_state=4, map=ssm.reparam.get("best", b=1.0)
    ),
    "regressor": lambda: models.SequenceRegressor(1, d_input=2, d_model=8, d_state=4, mixer="lru", norm="batch"),
    "tokens": lambda: models.SequenceClassifier(
        3, vocab_size=5, d_model=8, mixer="hyena-real", mixer_options={"timescales": (2.0, 50.0)}, per_step=True
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_as_it_was(tmp_path, name, dtype):
    model = MODELS[name]().to(dtype)
    x = torch.randint(0, 5, (2, 9)) if name == "tokens" else torch.randn(2, 9, 2, dtype=dtype)
    model(x)  # in training, so that running statistics move
    before = torch.get_rng_state()
    ssm.save(model, tmp_path / "model")
    again = ssm.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}
    assert repr(again) == repr(model)
    assert again.config == model.config or name == "tokens"  # a pair comes back as a list
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_a_layer_is_saved_without_touching_the_random_numbers(tmp_path):
    layer, before = ssm.LRU(1, 4, 1), torch.get_rng_state()
    ssm.save(layer, tmp_path)
    ssm.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_mixer_of_yours_is_saved_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(mixers, "_factories", dict(mixers._factories))

    def factory(d_model, d_state, map, map_options, *, dt):
        return ssm.ContinuousRNN(d_model, d_state, d_model, dt=dt)

    models.register_mixer("rnn", factory)
    model = models.SequenceRegressor(1, d_input=1, mixer="rnn", mixer_options={"dt": 0.1}, d_model=4, d_state=3)
    ssm.save(model, tmp_path)
    x = torch.randn(1, 5, 1)
    assert torch.equal(ssm.load(tmp_path)(x), model(x))
    del mixers._factories["rnn"]
    with pytest.raises(ArgumentError, match=r"mixer: expected one of .*register_mixer"):
        ssm.load(tmp_path)
    with pytest.raises(ArgumentError, match="mixer: expected one of"):
        ssm.save(model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_other_classes_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"layer: expected one of RealSSM.*SequenceClassifier"):
        ssm.save(models.SequenceStack(models.StackConfig(d_input=1)), tmp_path / "stack")
    ssm.save(MODELS["classifier"](), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del config["checksum"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"class": "os.system"}), encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"config\.json: .*class: expected one of .*os\.system"):
        ssm.load(tmp_path)


@pytest.mark.parametrize(("name", "inside"), [("classifier", ""), ("tokens", "model")])
def test_a_saved_model_is_measured(tmp_path, name, inside):
    ssm.save(MODELS[name](), tmp_path / "run" / inside)
    options = ("--horizon", "30", "--samples", "4", "--ascent", "1", "--out", tmp_path / "measured")
    result = CliRunner().invoke(app, ["measure", *map(str, (tmp_path / "run", *options))])
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "measured" / "record.json").read_text(encoding="utf-8"))["results"]
    assert facts["model"] == "SequenceClassifier"
    assert facts["stability radius"] == "inf"


def test_the_memory_measured_is_that_of_every_beginning():
    """The instruments stream a pooled model instead of running it on every beginning: the same curve, in one pass."""
    model = MODELS["classifier"]().double()
    direction = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    curve = ssm.memory_function(model, 12, directions=direction)
    x = torch.cat([torch.zeros(1, 1, 2), direction.expand(1, 12, 2)], 1).double()
    silent = torch.zeros_like(x)
    y = torch.stack([model(x[:, 1 : t + 1]) - model(silent[:, 1 : t + 1]) for t in range(13)], 1)[0]
    changes = torch.linalg.vector_norm(y[1:] - torch.cat([torch.zeros(1, 3), y[1:-1]]), dim=-1)
    torch.testing.assert_close(torch.from_numpy(curve.value), changes.detach(), rtol=1e-6, atol=1e-9)
    tokens = MODELS["tokens"]()
    assert len(ssm.memory_function(tokens, 20, tokens=[1, 2], prefix=[0]).value) == 20


def test_a_language_model_from_before_moving_averages_comes_back_as_it_was(tmp_path):
    """Old files have time scales or eigenvalues, but no ``average``."""
    torch.manual_seed(0)
    options = {"average": False, "timescales": [2.0, 50.0]}
    model = models.LanguageModel(9, d_model=8, d_state=4, mixer="real", mixer_options=options).eval()
    tokens = torch.randint(0, 9, (2, 30))
    ssm.save(model, tmp_path)
    content = record.read_json(tmp_path / "config.json")
    del content["options"]["mixer_options"]["average"]
    record.write_json(tmp_path / "config.json", content)
    again = ssm.load(tmp_path).eval()
    assert again.config.mixer_options == options
    assert torch.equal(again(tokens), model(tokens))
    new = models.LanguageModel(9, d_model=8, d_state=4, mixer="real", mixer_options={"timescales": [2.0, 50.0]}).eval()
    assert new.config.mixer_options == {**options, "average": True}
    new.load_state_dict(model.state_dict())
    assert not torch.allclose(new(tokens), model(tokens))
    ssm.save(new, tmp_path / "new")
    assert torch.equal(ssm.load(tmp_path / "new").eval()(tokens), new(tokens))

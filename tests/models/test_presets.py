from __future__ import annotations

from types import SimpleNamespace as Like

import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError, models
from stablessm.layers.mapped import MappedLayer

DIGITS = Like(kind="values", size=1), Like(kind="classes", size=10, per_step=False)


def count(settings) -> int:
    """Parameters of a classifier of one channel into ten classes, by hand."""
    d, n = settings["d_model"], settings["d_state"]
    linear = lambda m, k: (m + 1) * k  # noqa: E731
    norm = 2 * d
    mixer = d * n + d * n + d + 2 * d * n + d  # w, frequency, steps, C, D
    if settings.get("mixer") == "mingru":
        mixer = n + 2 * linear(d, n) + d * n  # w, gate, B, C
    if settings.get("mixer") == "hyena-s4d":
        mixer += linear(d, 3 * d) + 3 * 3 * d + linear(d, d)
    block = norm + mixer
    if settings.get("gate", True):
        block += linear(d, 2 * d)
    if settings.get("mlp"):
        block += norm + linear(d, settings["mlp"] * d) + linear(settings["mlp"] * d, d)
    last = norm if settings.get("prenorm", True) else 0
    return linear(1, d) + settings["n_layers"] * block + last + linear(d, 10)


LANGUAGE = [name for name, preset in models.PRESETS.items() if preset.language]


@pytest.mark.parametrize("name", [name for name in models.PRESETS if name not in LANGUAGE])
def test_parameters_are_as_stated(name):
    preset = models.PRESETS[name]
    model = models.for_task(*DIGITS, preset=name)
    assert sum(p.numel() for p in model.parameters()) == preset.parameters == count(preset.settings)
    assert model(torch.randn(2, 20, 1)).shape == (2, 10)


def text(vocabulary: int) -> tuple[Like, Like]:
    return Like(kind="tokens", size=vocabulary, length=64), Like(kind="classes", size=vocabulary, per_step=True)


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_are_as_large_as_stated(name):
    """Built without weights: the largest has three billion."""
    preset = models.PRESETS[name]
    d, n, layers = (preset.settings[key] for key in ("d_model", "d_state", "n_layers"))
    hyena = (d + 1) * 3 * d + 3 * 3 * d + (d + 1) * d
    recurrence = n + n * d + n + d * n  # w, B, bias, C
    mlp = (d + 1) * 4 * d + (4 * d + 1) * d
    with torch.device("meta"):
        model = models.for_task(*text(8192), preset=name)
    assert type(model) is models.LanguageModel
    by_hand = 8192 * d + layers * (hyena + recurrence + mlp + 2 * 2 * d) + 2 * d
    assert sum(p.numel() for p in model.parameters()) == preset.parameters == by_hand


def test_settings_that_no_count_of_parameters_shows():
    dropout = {
        "small": 0.1,
        "base": 0.1,
        "gated": 0.1,
        "images": 0.1,
        "paper-images": 0.1,
        "lm-small": 0.1,
        "lm-paper": 0.15,
    }
    steps = {"init": "lin", "dt_min": 1e-3, "dt_max": 0.1}
    discrete = {"time": "discrete"}
    mixing = {
        "paper-images": steps,
        "paper-recall": steps,
        "lm-tiny": discrete,
        "lm-small": discrete,
        "lm-3b": discrete,
    }
    mixing["lm-paper"] = {"time": "discrete", "timescales": [20.0, 2000.0]}
    maps = {"paper-images": {"a": 1.0, "b": 0.1}, "lm-paper": {"a": 1.0, "b": 0.5}, "lm-3b": {"a": 1.0, "b": 0.5}}
    pools = {"paper-images": "mean", "paper-recall": "last"}
    for name, preset in models.PRESETS.items():
        found = dict(preset.settings)
        for table, key, default in (
            (dropout, "dropout", 0.0),
            (mixing, "mixer_options", {}),
            (maps, "map_options", {}),
        ):
            assert found.pop(key, default) == table.get(name, default), (name, key)
        assert found.pop("pool", None) == pools.get(name), name
        assert found.pop("prenorm", True) == (name not in ("images", "paper-images")), name
        assert found.pop("activation", "gelu") == ("none" if name == "paper-recall" else "gelu"), name
        assert found.keys() <= {"d_model", "n_layers", "d_state", "mlp", "mixer", "gate"}, name  # counted


def test_the_size_of_the_papers_large_model():
    assert 2.9e9 < models.PRESETS["lm-3b"].parameters < 3.1e9
    assert 2.7e7 < models.PRESETS["lm-small"].parameters < 3.3e7


def test_a_language_model_wants_text():
    tokens, classes = text(5)
    assert models.for_task(tokens, classes, preset="lm-tiny", tied=False)(torch.zeros(1, 3).long()).shape == (1, 3, 5)
    for inputs, outputs in (
        DIGITS,
        (tokens, Like(kind="classes", size=5, per_step=False)),
        (tokens, Like(kind="classes", size=4, per_step=True)),
        (tokens, Like(kind="values", size=5, per_step=True)),
    ):
        with pytest.raises(ArgumentError, match="preset: expected no language model"):
            models.for_task(inputs, outputs, preset="lm-tiny")


@pytest.mark.parametrize("kind", ["values", "tokens"])
@pytest.mark.parametrize("per_step", [False, True])
def test_a_model_fits_its_task(kind, per_step):
    inputs = Like(kind=kind, size=5)
    x = torch.randint(0, 5, (2, 9)) if kind == "tokens" else torch.randn(2, 9, 5)
    for what, cls in (("classes", models.SequenceClassifier), ("values", models.SequenceRegressor)):
        model = models.for_task(inputs, Like(kind=what, size=3, per_step=per_step), preset="tiny", dropout=0.2)
        assert type(model) is cls
        assert model(x).shape == ((2, 9, 3) if per_step else (2, 3))
        assert model.config.dropout == 0.2


def test_another_map_or_mixer_leaves_options_of_the_first_behind():
    model = models.for_task(*DIGITS, preset="paper-images", map="softplus", mixer="lru")
    assert (model.config.map_options, model.config.mixer_options) == ({}, {})
    assert models.for_task(*DIGITS, preset="paper-images").config.map_options == {"a": 1.0, "b": 0.1}
    given = models.for_task(*DIGITS, preset="paper-images", map=ssm.reparam.get("best", b=1.0))
    assert given.config.map_options == {"a": 1.0, "b": 1.0}
    only = models.for_task(*DIGITS, preset="paper-images", map_options={"b": 0.5})
    assert only.config.map_options == {"b": 0.5}


def test_bad_choices_are_named():
    with pytest.raises(ArgumentError, match="preset: expected one of 'tiny', 'small'"):
        models.for_task(*DIGITS, preset="huge")
    with pytest.raises(ArgumentError, match="color: expected one of the settings"):
        models.for_task(*DIGITS, color="red")
    for decided in ("size", "d_input", "vocab_size", "per_step"):
        with pytest.raises(ArgumentError, match=f"{decided}: expected no value, since the task determines it, got 3"):
            models.for_task(*DIGITS, **{decided: 3})
    with pytest.raises(ArgumentError, match="inputs: expected the kind"):
        models.for_task(Like(kind="sound", size=1), DIGITS[1])
    with pytest.raises(ArgumentError, match="outputs: expected the kind"):
        models.for_task(DIGITS[0], Like(kind="sound", size=1, per_step=True))


def test_summary_counts_and_marks():
    model = models.for_task(*DIGITS, preset="paper-images")
    text = models.summary(model)
    assert "17,546 parameters, 4,160 of them recurrent (*)" in text
    row = next(line for line in text.splitlines() if "blocks.0.mixer" in line)
    assert all(part in row for part in ("w* 64×32", "frequency* 64×32", "log_dt* 64", "C 64×32×2", "best(a=1.0, b=0.1"))
    low, high = (float(part) for part in row.split()[-3::2])
    assert 20 <= low <= 40 <= high <= 2000  # 1/(|Re λ| dt) with dt from 0.1 to 0.001
    modules = [line.split()[0] for line in text.splitlines()[1:-1]]
    assert modules == [name for name, m in model.named_modules() if list(m.parameters(recurse=False))]


def test_summary_of_any_module():
    assert "12 parameters, 0 of them recurrent" in models.summary(torch.nn.Linear(3, 3))
    mixed = torch.nn.Sequential(ssm.LRU(1, 2, 1), torch.nn.Linear(1, 1))
    assert "w* 2, phase* 2" in models.summary(mixed)
    assert "map=" not in models.summary(ssm.ContinuousRNN(1, 2, 1))


@pytest.mark.parametrize("length", [1, 16, 300])
@pytest.mark.parametrize(
    "mixer", ["real", "hyena-real", "s4d", "hyena-s4d", "lru", "hyena-lru", "mingru", "minlstm", "rglru"]
)
def test_time_scales_of_a_language_model_start_within_its_windows(mixer: str, length: int) -> None:
    tokens, classes = Like(kind="tokens", size=9, length=length), Like(kind="classes", size=9, per_step=True)
    for options in ({}, {"time": "discrete"}) if mixer.endswith("real") else ({},):
        model = models.for_task(tokens, classes, "lm-tiny", mixer=mixer, d_state=64, mixer_options=options)
        layers = [layer for layer in model.modules() if isinstance(layer, MappedLayer)]
        assert len(layers) == 2
        for layer in layers:
            scales = -1 / layer._decays(torch.zeros(1, 1, layer.d_input), None).detach().abs().log()
            assert scales.min() >= 2 * (1 - 1e-3)
            assert scales.max() <= max(length, 4) * (1 + 1e-3)
    kept = models.for_task(tokens, classes, "lm-tiny", mixer="real", mixer_options={"timescales": [20.0, 2000.0]})
    assert kept.config.mixer_options["timescales"] == [20.0, 2000.0]
    assert models.for_task(tokens, classes, "lm-paper", d_model=8).config.mixer_options["timescales"] == [20.0, 2000.0]

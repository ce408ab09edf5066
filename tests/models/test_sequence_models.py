from __future__ import annotations

import copy
import dataclasses
import json
from types import SimpleNamespace as Like

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import randomized

import stablessm as ssm
from stablessm import ArgumentError, models

NUMBERS, TOKENS = {"d_input": 3}, {"vocab_size": 11}
KINDS = {
    "mean": lambda **o: models.SequenceClassifier(4, **o),
    "last": lambda **o: models.SequenceClassifier(4, pool="last", **o),
    "each": lambda **o: models.SequenceClassifier(4, per_step=True, **o),
    "numbers": lambda **o: models.SequenceRegressor(2, **o),
    "number": lambda **o: models.SequenceRegressor(2, per_step=False, **o),
    "average": lambda **o: models.SequenceRegressor(2, per_step=False, pool="mean", prenorm=False, **o),
}
POOLED = ["mean", "last", "number", "average"]
SMALL = {"d_model": 6, "d_state": 3, "n_layers": 2}


def make(kind, inputs=NUMBERS, **options):
    torch.manual_seed(0)
    return randomized(KINDS[kind](**(SMALL | inputs | options))).double().eval()


def sample(inputs, batch, steps):
    if inputs is TOKENS:
        return torch.randint(0, 11, (batch, steps))
    return torch.randn(batch, steps, 3, dtype=torch.float64)


def close(ours, truth):
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("inputs", [NUMBERS, TOKENS], ids=["numbers", "tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_model_streams(kind, inputs):
    assert ssm.check_streaming(make(kind, inputs)).ok


@pytest.mark.parametrize("inputs", [NUMBERS, TOKENS], ids=["numbers", "tokens"])
@pytest.mark.parametrize("kind", POOLED)
@settings(max_examples=8)
@given(data=st.data(), steps=st.integers(1, 9))
def test_a_sequence_gives_what_every_beginning_gives(kind, inputs, data, steps):
    """With resets, padding and a state: sequence()[:, t] is forward() of the steps up to t, and so is step()."""
    model = make(kind, inputs)
    x = sample(inputs, 2, steps)
    _, state = (
        model.sequence(sample(inputs, 2, data.draw(st.integers(0, 3)))) if data.draw(st.booleans()) else (0, None)
    )
    reset = torch.tensor(data.draw(st.lists(st.booleans(), min_size=steps, max_size=steps)))
    y, final = model.sequence(x, state, reset=reset)
    end = steps + 2
    longer = torch.cat([x, sample(inputs, 2, 2)], 1)
    flags = torch.cat([reset, torch.tensor([True, False])])
    for length in (*range(1, steps + 1),):
        close(y[:, length - 1], model(x[:, :length], state, reset=reset[:length]))
        lengths = torch.tensor([length, end])
        close(y[0, length - 1], model(longer, state, reset=flags, lengths=lengths)[0])
    padded, last = model.sequence(longer, state, reset=flags, lengths=torch.tensor([steps, steps]))
    close(padded[:, :steps], y)
    assert not padded[:, steps:].any()
    close(model.step(x[:, 0], last)[0], model.step(x[:, 0], final)[0])


@pytest.mark.parametrize("mixer", ["s4d", "hyena-real"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_the_padding_matters(kind, norm, mixer):
    model = make(kind, norm=norm, mixer=mixer)
    x, lengths = sample(NUMBERS, 3, 8), torch.tensor([8, 5, 0])
    clean = model(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        x[i, length:] = torch.nan
    again = model(x, lengths=lengths)
    close(again, clean)
    again.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    close(again[1:2, :5] if model.config.per_step else again[1:2], model(x[1:2, :5]))


def test_padding_tokens_can_be_anything():
    model, x = make("mean", TOKENS), sample(TOKENS, 2, 6)
    x[0, 4:] = -100
    close(model(x, lengths=torch.tensor([4, 6]))[:1], model(x[:1, :4]))


def test_tokens_and_their_embeddings_are_the_same_input():
    model, x = make("mean", TOKENS), sample(TOKENS, 2, 6)
    close(model(model.body.encoder(x)), model(x))


OWN = {
    "s4d": ("w", "frequency", "log_dt"), "lru": ("w", "phase"), "real": ("w",),
    **dict.fromkeys(("mingru", "minlstm", "rglru", "hgrn", "selective"), ("w", "gate_bias")),
}  # fmt: skip
"""The recurrent parameters of each mixer."""


@pytest.mark.parametrize("mixer", [*OWN, "hyena-s4d", "hyena-lru", "hyena-real"])
def test_gradients_reach_everything_and_recurrent_parameters_are_found(mixer):
    model = make("mean", mixer=mixer, mlp=2).train()
    model(sample(NUMBERS, 4, 20)).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent
    groups = {group["name"]: group["params"] for group in ssm.param_groups(model, 0.01, recurrent_lr=0.001)}
    names = {id(p): name for name, p in model.named_parameters()}
    found = {names[id(p)] for p in groups["recurrent"]}
    own = OWN[mixer.removeprefix("hyena-")]
    inner = "mixer.inner" if mixer.startswith("hyena-") else "mixer"
    assert found == {f"body.blocks.{i}.{inner}.{name}" for i in range(2) for name in own}


@pytest.mark.parametrize("preset", ["paper-images", "paper-recall"])
def test_every_map_starts_as_the_same_function(preset):
    """From one seed, every map gives the same eigenvalues, and so the same model."""
    digits = Like(kind="values", size=1), Like(kind="classes", size=10, per_step=False)
    x, outputs = torch.randn(2, 40, 1), {}
    changes = [("best", {"b": b}) for b in (0.1, 0.5, 1.0)]
    changes += [(name, {}) for name in ("direct", "clip", "relu", "exp", "softplus")]
    for name, options in changes:
        torch.manual_seed(0)
        model = models.for_task(*digits, preset=preset, map=name, map_options=options).eval()
        outputs[name, str(options)] = model(x)
    first, *others = outputs.values()
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-3, atol=1e-4)


def test_the_papers_image_model():
    torch.manual_seed(0)
    digits = Like(kind="values", size=1), Like(kind="classes", size=10, per_step=False)
    model = models.for_task(*digits, preset="paper-images")
    (block,) = model.body.blocks
    lam = block.mixer.eigenvalues()
    assert lam.shape == (64, 32)
    torch.testing.assert_close(lam.real, torch.full((64, 32), -0.5))
    torch.testing.assert_close(lam.imag, torch.pi * torch.arange(32.0).expand(64, 32))
    torch.testing.assert_close(block.mixer.w, torch.full((64, 32), 1.9**0.5))  # 1.378, as the authors'
    steps = block.mixer.log_dt.exp()
    assert ((steps > 1e-3) & (steps < 0.1)).all()
    x = torch.randn(2, 30, 1)
    model.eval()
    h = x @ model.body.encoder.weight.T + model.body.encoder.bias
    gated = torch.nn.functional.glu(block.gate(torch.nn.functional.gelu(block.mixer(h)[0])), -1)
    h = torch.nn.functional.layer_norm(h + gated, (64,))
    torch.testing.assert_close(model(x), h.mean(1) @ model.readout.weight.T + model.readout.bias)


def test_autocast_keeps_the_recurrence_wide():
    for mixer in (*OWN, "hyena-real"):
        model = make("mean", mixer=mixer).float()
        x = torch.randn(2, 30, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
            _, (blocks, pooled) = model.sequence(x)
        y.float().sum().backward()
        states = [block[1] if mixer.startswith("hyena-") else block for block in blocks]
        assert {t.dtype for t in (*states, *pooled)} <= {torch.float32, torch.complex64}
        torch.testing.assert_close(y.float(), model(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_cast_to_a_short_dtype_still_runs(kind):
    for mixer in (*OWN, "hyena-s4d"):
        model = make(kind, mixer=mixer).float()
        x = torch.randn(2, 30, 3).bfloat16()
        wide = model(x.float())
        y = model.bfloat16()(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), wide, rtol=0.1, atol=0.1)


QUANTIZED = {
    "classifier": lambda **o: models.SequenceClassifier(4, **o),
    "tied": lambda **o: models.LanguageModel(tied=True, **o),
    "untied": lambda **o: models.LanguageModel(tied=False, **o),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("embeddings", [False, True], ids=["linear", "embeddings too"])
@pytest.mark.parametrize("mixer", ["s4d", "hyena-real"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_models_run_and_stream(kind, mixer, embeddings):
    torch.manual_seed(0)
    model = randomized(QUANTIZED[kind](**(SMALL | TOKENS), mixer=mixer)).eval()
    settings = {torch.nn.Linear: torch.ao.quantization.default_dynamic_qconfig}
    if embeddings:
        settings[torch.nn.Embedding] = torch.ao.quantization.float_qparams_weight_only_qconfig
    small, x = torch.ao.quantization.quantize_dynamic(model, settings), sample(TOKENS, 2, 5)
    truth = model(x)
    assert 0 < (small(x) - truth).norm() < 0.1 * truth.norm()
    outputs, _ = small.sequence(x)
    state = small.initial_state(2)
    for x_t in x.unbind(1):
        y_t, state = small.step(x_t, state)
    assert (y_t - outputs[:, -1]).norm() < 0.1 * outputs[:, -1].norm()


def test_several_seeds_train_in_one_computation():
    """``vmap`` over stacked weights gives the gradients of each model alone."""
    seeds = [models.SequenceClassifier(4, d_input=3, **SMALL, prenorm=False) for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(seeds)
    x, target = torch.randn(5, 12, 3), torch.randint(0, 4, (5,))

    def loss(weights, buffers):
        logits = torch.func.functional_call(seeds[0], (weights, buffers), (x,))
        return torch.nn.functional.cross_entropy(logits, target)

    together = torch.func.vmap(torch.func.grad(loss))(weights, buffers)
    for i, model in enumerate(seeds):
        torch.nn.functional.cross_entropy(model(x), target).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(together[name][i], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "paper-images", "paper-recall"])
def test_compiled_models_give_the_same_numbers_and_gradients(preset):
    digits = Like(kind="values", size=1), Like(kind="classes", size=10, per_step=False)
    model = models.for_task(*digits, preset=preset, dropout=0.0)
    x, y = torch.randn(4, 50, 1), torch.tensor([0, 1, 2, 3])
    grads = []
    for run in (model, torch.compile(model)):
        model.zero_grad()
        torch.nn.functional.cross_entropy(run(x), y).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for ours, truth in zip(*grads, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-5)


def test_a_model_learns():
    """Which of two tokens came first, thirty steps ago."""
    torch.manual_seed(0)
    model = models.SequenceClassifier(2, vocab_size=3, d_model=16, d_state=8, n_layers=1, pool="last", dropout=0.0)
    optimizer = torch.optim.AdamW(ssm.param_groups(model, 0.01))
    for _ in range(60):
        y = torch.randint(0, 2, (32,))
        x = torch.cat([y[:, None], torch.full((32, 30), 2)], 1)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05


def test_defaults():
    """A changed default is a changed model: every one is written down here once more."""
    stack = {
        "d_model": 64, "n_layers": 2, "mixer": "s4d", "d_state": 32, "map": "best", "map_options": {},
        "mixer_options": {}, "norm": "layer", "prenorm": True, "activation": "gelu", "gate": True, "mlp": 0,
        "dropout": 0.0, "edge_dropout": 0.0,
    }  # fmt: skip
    mine = {"d_input": 1, "vocab_size": None, **stack}
    assert dataclasses.asdict(models.StackConfig(d_input=1)) == mine
    classifier, regressor = models.SequenceClassifier(3, d_input=1), models.SequenceRegressor(3, d_input=1)
    assert dataclasses.asdict(classifier.config) == {**mine, "size": 3, "pool": "mean", "per_step": False}
    assert dataclasses.asdict(regressor.config) == {**mine, "size": 3, "pool": "last", "per_step": True}
    language = {
        **stack, "mixer": "hyena-real", "activation": "none", "gate": False, "mlp": 4, "vocab_size": 9,
        "mixer_options": {"timescales": [2.0, 2000.0]}, "tied": True,
    }  # fmt: skip
    assert dataclasses.asdict(models.LanguageModel(9).config) == {"d_input": None, **language}
    hf = models.StableSSMConfig()
    own = {**language, "vocab_size": 8192, "d_model": 512, "n_layers": 8, "d_state": 64}
    assert {name: getattr(hf, name) for name in own if name != "tied"} == {k: v for k, v in own.items() if k != "tied"}
    assert hf.tie_word_embeddings
    assert hf.use_cache
    eigenvalues = {"eigenvalues": [-0.5] * 32}
    assert models.LanguageConfig(vocab_size=9, mixer_options=eigenvalues).mixer_options == eigenvalues
    given = models.LanguageConfig(vocab_size=9, mixer="real", mixer_options=eigenvalues).mixer_options
    assert given == {"average": True, **eigenvalues}
    assert models.LanguageModel(9, mixer="real").config.mixer_options == {"average": True, "timescales": [2.0, 2000.0]}


def test_pooling_and_readout_are_their_equations():
    x = sample(NUMBERS, 3, 6)
    for kind in KINDS:
        model = make(kind)
        h, _ = model.body(x)
        pooled = {"mean": h.mean(1), "average": h.mean(1), "last": h[:, -1], "number": h[:, -1]}.get(kind, h)
        close(model(x), pooled @ model.readout.weight.T + model.readout.bias)


def test_the_config_is_plain_and_complete():
    config = make("mean", map=ssm.reparam.get("best", b=1.0)).config
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    assert models.SequenceClassifier(**plain).config == config
    assert (config.map, config.map_options) == ("best", {"a": 1.0, "b": 1.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 3
    assert copy.deepcopy(make("mean")).config == make("mean").config


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("d_input, vocab_size", {"d_input": 1, "vocab_size": 5}),
        ("d_input, vocab_size", {}),
        ("d_model", {"d_input": 1, "d_model": 0}),
        ("width", {"d_input": 1, "width": 8}),
        ("pool", {"d_input": 1, "pool": "max"}),
        ("dropout", {"d_input": 1, "dropout": 1.0}),
        ("dropout", {"d_input": 1, "dropout": -0.1}),
        ("edge_dropout", {"d_input": 1, "edge_dropout": 1.0}),
        ("gate", {"d_input": 1, "gate": 1}),
        ("prenorm", {"d_input": 1, "prenorm": None}),
        ("mixer_options", {"d_input": 1, "mixer_options": ["mode"]}),
        ("map", {"d_input": 1, "map": ssm.reparam.get("tanh", time="discrete")}),
        ("map", {"d_input": 1, "mixer": "lru", "map": ssm.reparam.get("best")}),
        ("map_options", {"d_input": 1, "map": ssm.reparam.get("best"), "map_options": {"b": 1.0}}),
        ("c", {"d_input": 1, "map": "best", "map_options": {"c": 1.0}}),
        ("eigenvalues", {"d_input": 1, "map_options": {"b": 3.0}}),
    ],
)
def test_bad_settings_are_named(argument, options):
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        models.SequenceClassifier(3, **options)


def test_bad_inputs_are_named():
    numbers, tokens = make("mean"), make("mean", TOKENS)
    for model, x, what in (
        (numbers, torch.zeros(2, 5, 4), r"x: expected numbers \(batch, time, 3\), got shape \(2, 5, 4\)"),
        (numbers, torch.zeros(2, 5, dtype=torch.long), r"x: expected numbers .*, got dtype torch.int64"),
        (tokens, torch.zeros(2, 5, 1, dtype=torch.long), r"x: expected tokens \(batch, time\)"),
        (tokens, torch.full((2, 5), 11), r"x: expected tokens from 0 to 10 .*got 11"),
        (tokens, torch.full((2, 5), -1), r"x: expected tokens from 0 to 10 .*got -1"),
    ):
        with pytest.raises(ArgumentError, match=what):
            model(x.double() if x.is_floating_point() else x)
    x = sample(NUMBERS, 2, 5)
    for call, value in ((numbers, x.float()), (numbers.step, x[:, 0].float()), (tokens, torch.zeros(2, 5, 6))):
        with pytest.raises(
            ArgumentError, match=r"x(_t)?: expected dtype torch.float64, .*\.to\(torch.float64\).*float32$"
        ):
            call(value)
    with pytest.raises(ArgumentError, match="x: expected a tensor, got list"):
        numbers([[1.0, 2.0, 3.0]])
    for state in (x, (None,) * 3):
        with pytest.raises(ArgumentError, match="state: expected the pair"):
            numbers.sequence(x, state)
    for state, got in (((None,), "1"), (5, "int")):
        with pytest.raises(ArgumentError, match=f"state: expected 2 entries, one per block, got {got}"):
            numbers.sequence(x, (state, None))
    with pytest.raises(ArgumentError, match=r"x_t: expected numbers \(batch, 3\)"):
        numbers.step(x)
    with pytest.raises(ArgumentError, match="lengths: expected"):
        numbers(x, lengths=torch.tensor([5, 6]))
    with pytest.raises(ArgumentError, match="reset: expected"):
        numbers(x, reset=torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="size: expected"):
        models.SequenceClassifier(1, d_input=1)

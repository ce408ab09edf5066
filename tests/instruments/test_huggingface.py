from __future__ import annotations

import functools
import os
from pathlib import Path

import hf_models
import numpy as np
import pytest
import torch
import transformers

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments import huggingface, systems

HORIZON = 40


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_every_architecture_is_measured_by_tokens(name):
    model = hf_models.model(name)
    curve = ssm.memory_function(model, HORIZON, tokens=[5, 9], prefix=[1, 3, 3])
    assert (curve.unit, curve.exact, curve.norm, curve.bound, curve.dt) == ("tokens", True, "unit", 1.0, 1.0)
    assert curve.inputs == ("5", "9")
    ids = torch.tensor([[1, 3, 3, *[9] * HORIZON]])
    with torch.no_grad():
        logits = model(ids).logits.double()[0, 2:]
    np.testing.assert_allclose(curve.of("9").value, logits.diff(dim=0).norm(dim=1), atol=10 * curve.floor + 1e-12)


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_every_architecture_is_measured_in_embedding_space(name):
    model = hf_models.model(name)
    curve = ssm.memory_function(model, 24, samples=3, ascent=1)
    assert not curve.exact
    assert curve.maximizer.shape == (24, 32)
    assert curve.note == "3 inputs, 1 steps of gradient ascent"
    x = torch.from_numpy(curve.maximizer[5])
    base = model.get_input_embeddings()(torch.tensor(1)).detach()
    still = base.expand(1, huggingface.WARM_UP + 24, -1)
    moved = still.clone()
    moved[:, huggingface.WARM_UP :] += x
    with torch.no_grad():
        y = (model(inputs_embeds=moved).logits - model(inputs_embeds=still).logits).double()[0]
    speed = (y[huggingface.WARM_UP + 5] - y[huggingface.WARM_UP + 4]).norm()
    np.testing.assert_allclose(curve.value[5], speed, rtol=1e-3, atol=10 * curve.floor)


@pytest.mark.parametrize("how", ["tokens", "embedding"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_sliding_window_is_finite_memory_of_the_right_length(how, layers, monkeypatch):
    monkeypatch.setitem(hf_models.CONFIGS["mistral"][1], "num_hidden_layers", layers)
    model = hf_models.model("mistral")
    options = {"tokens": [7]} if how == "tokens" else {"samples": 2, "ascent": 0}
    fit = ssm.memory_function(model, 48, **options).decay()
    assert fit.kind == "finite"
    assert fit.last_lag == layers * (hf_models.WINDOW - 1)


def test_full_attention_and_recurrences_are_not_finite():
    for name in ("llama", "rwkv", "recurrent-gemma"):
        assert ssm.memory_function(hf_models.model(name), 100, tokens=[7]).decay().kind != "finite"


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "mamba2"])
def test_a_cache_is_carried_from_chunk_to_chunk(name, monkeypatch):
    model = hf_models.model(name)
    whole = ssm.memory_function(model, 60, tokens=[5])
    monkeypatch.setattr(systems, "CHUNK_ELEMENTS", 16)
    assert huggingface.token_system(model, None).streams
    pieces = ssm.memory_function(model, 60, tokens=[5])
    np.testing.assert_allclose(pieces.value, whole.value, atol=10 * whole.floor)


def test_outputs_may_be_logits_hidden_states_or_a_score():
    model = hf_models.model("llama")
    logits = ssm.memory_function(model, 20, tokens=[5], output="logits")
    hidden = ssm.memory_function(model, 20, tokens=[5], output="hidden")
    score = ssm.memory_function(model, 20, tokens=[5], output=lambda out: out.logits[..., 4] - out.logits[..., 6])
    assert (score.value <= np.sqrt(2) * logits.value + 1e-12).all()
    assert not np.allclose(hidden.value, logits.value)
    with pytest.raises(ArgumentError, match="output: expected 'logits', 'hidden' or a function"):
        ssm.memory_function(model, 20, tokens=[5], output="attention")


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_a_scalar_score_of_every_architecture(name):
    model = hf_models.model(name)
    curve = ssm.memory_function(model, 12, tokens=[3], output=lambda out: out.logits[..., 5])
    assert curve.value.shape == (12,)
    assert ssm.memory_function(model, 8, output=lambda out: out.logits[..., 5], samples=2, ascent=1).value[0] > 0


def test_a_real_vocabulary_in_embedding_space():
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=64)
    curve = ssm.memory_function(transformers.GPT2LMHeadModel(config).eval(), 4, samples=2, ascent=1)
    assert curve.value[0] > 0


def test_an_encoder_needs_positions_on_both_sides():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    assert ssm.memory_function(model, 16, samples=2, ascent=0).value[0] > 0
    with pytest.raises(ArgumentError, match="horizon: expected at most 16 steps"):
        ssm.memory_function(model, 20, samples=2, ascent=0)


def test_a_classifier_is_run_on_beginnings():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config).double().eval()
    curve = ssm.memory_function(model, 12, tokens=[5, 8], prefix=[2])
    with torch.no_grad():
        scores = torch.stack([model(torch.tensor([[2, *[8] * n]])).logits[0] for n in range(13)])
    np.testing.assert_allclose(curve.of("8").value, scores.diff(dim=0).norm(dim=1), atol=1e-12)


def test_a_suffix_closes_every_beginning():
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, num_labels=2,
        max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).double().eval()

    def score(out):
        return out.logits[:, 1] - out.logits[:, 0]

    curve = ssm.memory_function(model, 12, tokens=[5, 8], prefix=[2], suffix=[3, 4], output=score)
    with torch.no_grad():
        scores = torch.cat([score(model(torch.tensor([[2, *[8] * n, 3, 4]]))) for n in range(13)])
    np.testing.assert_allclose(curve.of("8").value, scores.diff().abs(), atol=1e-12)
    with pytest.raises(ArgumentError, match="horizon: expected at most 13 steps"):
        ssm.memory_function(model, 14, tokens=[5], prefix=[2], suffix=[3, 4])
    with pytest.raises(ArgumentError, match="suffix: expected at least one token id from 0 to 63"):
        ssm.memory_function(model, 5, tokens=[5], prefix=[2], suffix=[])
    with pytest.raises(ArgumentError, match="suffix: expected None without tokens"):
        ssm.memory_function(model, 5, suffix=[3])
    with pytest.raises(ArgumentError, match="suffix: expected None, since the model has an output at every token"):
        ssm.memory_function(hf_models.model("llama"), 5, tokens=[5], suffix=[3])


@pytest.mark.parametrize("pooled", [False, True])
def test_any_callable_of_token_ids(pooled):
    torch.manual_seed(0)
    table, rnn = torch.nn.Embedding(9, 4).double(), torch.nn.GRU(4, 3, batch_first=True).double()

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.rnn = table, rnn

        def forward(self, ids):
            states = self.rnn(self.table(ids))[0]
            return states[:, -1] if pooled else states

    curve = ssm.memory_function(Reader(), 10, tokens=[4, 6], prefix=[1, 2])
    with torch.no_grad():
        states = rnn(table(torch.tensor([[1, 2, *[6] * 10]])))[0][0, 1:]
    np.testing.assert_allclose(curve.of("6").value, states.diff(dim=0).norm(dim=1), atol=1e-14)
    assert ssm.memory_function(lambda ids: ids.double().cos(), 5, tokens=[3], prefix=[0]).value[0] > 1
    with pytest.raises(ArgumentError, match="output: expected None"):
        ssm.memory_function(Reader(), 10, tokens=[4], prefix=[1], output="logits")
    with pytest.raises(ArgumentError, match="tokens: expected at least one token id from 0 up"):
        ssm.memory_function(Reader(), 10, tokens=[-1], prefix=[1])


def test_positions_and_tokens_that_are_not_there():
    model = hf_models.model("gpt2")
    with pytest.raises(ArgumentError, match="horizon: expected at most 127 steps"):
        ssm.memory_function(model, 128, tokens=[5])
    with pytest.raises(ArgumentError, match="prefix: expected at least one token id from 0 to 63"):
        ssm.memory_function(model, 10, tokens=[5], prefix=[64])
    with pytest.raises(ArgumentError, match="tokens: expected"):
        ssm.memory_function(model, 10, tokens=[])
    with pytest.raises(ArgumentError, match="dt: expected None with tokens"):
        ssm.memory_function(model, 10, tokens=[5], dt=0.5)


@pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs the data folder")
def test_the_tiny_trained_model():
    folder = Path(os.environ["STABLESSM_DATA"]) / "stories260k_hf"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (word,) = tokenizer.encode("the", add_special_tokens=False)[-1:]
    curve = ssm.memory_function(model, 300, tokens=[word])
    assert 0 < curve.value[-1] < 1e-3 * curve.value[0]
    assert curve.decay().kind not in ("finite", "none")  # attention need not follow a law: undecided is an answer
    assert curve.value[0] > 100 * curve.value[-1] > 0
    assert ssm.memory_function(model, 60, samples=4, ascent=1).value.min() > 0


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("xLSTM", {"num_heads": 2, "num_blocks": 2, "embedding_dim": 32}),
        (
            "Lfm2",
            {
                "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
                "layer_types": ["conv", "full_attention"],
            },
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("measured", [{"tokens": [3]}, {"samples": 2, "ascent": 0}])
def test_a_model_whose_cache_fails_runs_without_it(family, options, measured):
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"{family} is not in this version of transformers")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    curve = ssm.memory_function(model, 12, **measured)
    assert (curve.value > 0).any()


def test_a_cache_that_raises_is_not_asked_for_again():
    model = hf_models.model("llama")
    forward = model.forward

    @functools.wraps(forward)
    def fails(*args, use_cache=None, **kwargs):
        if use_cache:
            raise AttributeError("no such cache")
        return forward(*args, use_cache=use_cache, **kwargs)

    expected = ssm.memory_function(model, 12, tokens=[3])
    model.forward = fails
    np.testing.assert_allclose(ssm.memory_function(model, 12, tokens=[3]).value, expected.value, rtol=1e-5)

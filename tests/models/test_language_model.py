"""The plain language model: one function in every mode, tied or not, from the same eigenvalues whatever the map."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, models
from stablessm.layers.hold import hold
from stablessm.models import LanguageModel

MIXERS = ("hyena-real", "hyena-lru", "hyena-s4d", "hyena-mingru", "minlstm", "rglru", "hgrn", "selective")
VOCABULARY = 11


def make(mixer: str = "hyena-real", **options: object) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(VOCABULARY, **{"d_model": 8, "n_layers": 2, "d_state": 4, "mixer": mixer, **options})


def tokens(batch: int, steps: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, steps))


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_streams(mixer):
    assert ssm.check_streaming(make(mixer).double().eval()).ok


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=4), split=st.integers(0, 20))
def test_packed_documents_are_what_they_are_alone(mixer, cuts, split):
    """Several documents in a row, a reset at each, in two calls with the state carried."""
    model = make(mixer).double().eval()
    documents = [tokens(1, length) for length in cuts]
    row = torch.cat(documents, 1)
    reset = torch.zeros(row.shape, dtype=torch.bool)
    reset[0, torch.tensor([0, *cuts[:-1]]).cumsum(0)] = True
    split = min(split, row.shape[1])
    first, state = model.sequence(row[:, :split], reset=reset[:, :split])
    second, _ = model.sequence(row[:, split:], state, reset=reset[:, split:])
    alone = torch.cat([model(document) for document in documents], 1)
    torch.testing.assert_close(torch.cat([first, second], 1), alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_the_readout_is_the_table_of_embeddings_or_its_own(tied, tmp_path):
    model, x = make(tied=tied), tokens(2, 9)
    names = dict(model.named_parameters())
    assert ("readout.weight" in names) is not tied
    h = model.body(x)[0]
    table = names["body.encoder.weight" if tied else "readout.weight"]
    torch.testing.assert_close(model(x), h @ table.T)
    ssm.save(model, tmp_path)
    again = ssm.load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(x), model(x))


def test_edge_dropout_is_of_embeddings_and_of_what_is_read_out():
    model, x, seen = make(edge_dropout=0.5), tokens(3, 20), []
    model.body.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    seen.append(model.train().body(x)[0])
    for h in seen:
        left = (h == 0).all(1)
        assert torch.equal(left[:, None].expand_as(h), h == 0), "the same channels at every step"
        assert 0.2 < left.float().mean() < 0.8
    plain = make()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(x), plain(x))
    with pytest.raises(ArgumentError, match=r"^edge_dropout: expected a number from 0 to below 1, got 1\.5"):
        make(edge_dropout=1.5)


def test_gradient_checkpointing_computes_the_same_again():
    calls, x = [], tokens(2, 20)
    model = make(dropout=0.3)
    model.body.blocks[0].mixer.register_forward_hook(lambda *_: calls.append(1))
    grads = []
    for again in (False, True):
        model.body.gradient_checkpointing = again
        model.zero_grad()
        torch.manual_seed(1)
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert len(calls) == 3
    for ours, truth in zip(*grads, strict=True):
        torch.testing.assert_close(ours, truth, rtol=0, atol=0)
    model.eval()(x)
    assert len(calls) == 4


@pytest.mark.parametrize("mixer", MIXERS)
def test_autocast_keeps_the_recurrence_wide(mixer):
    model, x = make(mixer), tokens(2, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, (blocks, _) = model.sequence(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
    loss.backward()
    assert logits.dtype == torch.bfloat16
    assert {inner.dtype for _, inner in blocks} <= {torch.float32, torch.complex64}
    torch.testing.assert_close(logits.float(), model(x), rtol=0.05, atol=0.02)
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_every_map_starts_as_the_same_function():
    x, outputs = tokens(2, 30), []
    for name, options in (
        ("best", {"b": 0.5}), ("best", {"b": 1.0}), ("direct", {}), ("relu", {}), ("exp", {}), ("softplus", {})
    ):  # fmt: skip
        for time in ("continuous", "discrete"):
            model = make(map=name, map_options=options, mixer_options={"time": time}).double()
            model = model.eval()
            rates = model.body.blocks[1].mixer.inner.eigenvalues()
            scales = -1 / (rates if time == "continuous" else rates.log())
            torch.testing.assert_close(
                scales.sort().values[[0, -1]], torch.tensor([2.0, 2000.0]).double(), rtol=1e-3, atol=0
            )
            outputs.append(model(x))
    for discrete in (outputs[::2], outputs[1::2]):
        for other in discrete[1:]:
            torch.testing.assert_close(other, discrete[0], rtol=1e-3, atol=1e-6)


def test_where_it_starts():
    torch.manual_seed(0)
    model = LanguageModel(2000, d_model=64, n_layers=8, d_state=16)
    assert 0.019 < model.body.encoder.weight.std().item() < 0.021
    assert model(torch.randint(0, 2000, (2, 50))).std().item() < 1
    block = model.body.blocks[0]
    for small, plain, inputs in ((block.narrow, block.wide, 256), (block.mixer.output, block.mixer.projection, 64)):
        assert not small.bias.any()
        assert not plain.bias.any()
        torch.testing.assert_close(small.weight.std().item(), (3 * inputs) ** -0.5 / 4, rtol=0.05, atol=0)
        torch.testing.assert_close(plain.weight.std().item(), (3 * 64) ** -0.5, rtol=0.05, atol=0)


def test_a_module_drawn_again_starts_as_at_construction():
    """Whatever was in it; eigenvalues come back, and what is drawn has the same deviation."""
    torch.manual_seed(0)
    model = LanguageModel(500, d_model=64, n_layers=2, d_state=16)
    before = {name: (p.clone(), p.std().item()) for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    for module in model.modules():
        model.draw(module)
    for name, p in model.named_parameters():
        if name.endswith(".w"):
            assert torch.equal(p, before[name][0])
        torch.testing.assert_close(p.std().item(), before[name][1], rtol=0.2, atol=1e-6)


def test_it_learns_to_repeat():
    """A text of period 5 is known after five tokens."""
    torch.manual_seed(0)
    model = make(d_model=16, d_state=8)
    optimizer = torch.optim.AdamW(ssm.param_groups(model, 0.01))
    for _ in range(80):
        x = tokens(16, 5).repeat(1, 4)
        loss = nn.functional.cross_entropy(model(x)[:, 4:-1].flatten(0, 1), x[:, 5:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.0  # log 11 = 2.4


def test_holding_the_eigenvalues_changes_nothing_but_is_of_this_moment():
    for mixer in MIXERS[:3]:
        model = make(mixer).eval()
        with torch.no_grad():
            truth = model.step(torch.tensor([3]))[0]
            with hold(model):
                assert torch.equal(model.step(torch.tensor([3]))[0], truth)
                inner = model.body.blocks[0].mixer.inner
                held = inner._factors(None)[0]
                assert held is inner._factors(None)[0]
                with torch.enable_grad():
                    assert inner._factors(None)[0].requires_grad
            assert inner._factors(None)[0] is not held


def test_texts_drawn_in_turns_hold_nothing_in_the_end():
    model, prompt = make(dropout=0.5), torch.tensor([1, 2])
    alone = list(models.sample_tokens(model, prompt, count=6))
    first, second = (models.sample_tokens(model, prompt, count=count) for count in (3, 6))
    assert [next(first), next(second)] == alone[:1] * 2
    assert model.body.blocks[0].mixer.inner._held is not None
    assert ([*first], [*second]) == (alone[1:3], alone[1:])
    assert model.body.blocks[0].mixer.inner._held is None
    assert model.training


@settings(max_examples=8)
@given(
    temperature=st.floats(0.3, 3), top_k=st.sampled_from([None, 1, 3, 20]),
    never=st.lists(st.integers(0, 10), max_size=3), seed=st.integers(0, 99),
)  # fmt: skip
def test_tokens_are_drawn_by_their_chances(temperature, top_k, never, seed):
    """The next token of the whole text so far, with a softmax by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stablessm.models.sampling._AT_ONCE", 2)  # a prompt is read in parts
        model, text = make().double(), [4, 1, 7]
        options = {"temperature": temperature, "top_k": top_k, "never": never, "seed": seed}
        drawn = [*models.sample_tokens(model, torch.tensor(text), count=5, **options)]
    generator = torch.Generator().manual_seed(seed)
    for token in drawn:
        with torch.no_grad():
            logits = model.eval()(torch.tensor([text]))[0, -1]
        logits[never] = -torch.inf
        chances = (logits / temperature).exp()
        if top_k is not None:
            chances[logits.argsort(descending=True)[top_k:]] = 0
        assert token == int(torch.multinomial(chances / chances.sum(), 1, generator=generator))
        assert token not in never
        text.append(token)
    assert not [*models.sample_tokens(model, torch.tensor([1]), count=0)]


@pytest.mark.parametrize("temperature", [1e-6, 1e-300])
def test_the_coldest_text_is_the_most_likely_one(temperature):
    drawn = [[*models.sample_tokens(make(), torch.tensor([1]), count=8, temperature=t)] for t in (0, temperature)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("mixer", MIXERS)
def test_it_is_built_without_weights(mixer):
    with torch.device("meta"):
        model = make(mixer)
    assert all(p.is_meta for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in make(mixer).parameters())


def test_it_is_measured_and_listed():
    model = make()
    assert "w* 4" in models.summary(model)
    assert ssm.memory_function(model, 20, samples=4, ascent=0).value.shape == (20,)
    assert ssm.memory_function(model, 20, tokens=[1, 2], prefix=[0]).value.shape == (20,)
    assert ssm.stability_radius(model) == float("inf")


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("tied", {"tied": "yes"}),
        ("color", {"color": "red"}),
        ("mixer", {"mixer": "hyena-lstm"}),
        ("eigenvalues", {"map": "best", "map_options": {"b": 3.0}}),
        ("d_input, vocab_size", {"d_input": 3}),
    ],
)
def test_bad_settings_are_named(argument, options):
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        make(**options)
    assert LanguageModel(2, d_model=4, n_layers=1, d_state=2).d_output == 2
    with pytest.raises(ArgumentError, match=r"^vocab_size: expected"):
        LanguageModel(1)
    with pytest.raises(ArgumentError, match=r"^vocab_size: expected"):
        models.LanguageConfig(d_input=1)

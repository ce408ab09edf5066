"""The language model in Hugging Face's form."""

from __future__ import annotations

import copy
import json
import os
import tracemalloc

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from transformers import AutoModelForCausalLM

import stablessm as ssm
from stablessm import ArgumentError, instruments
from stablessm.models import LanguageModel, StableSSMCache, StableSSMConfig, StableSSMForCausalLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MIXERS = ("hyena-real", "hyena-lru", "hyena-s4d")
VOCABULARY = 31


def make(mixer: str = "hyena-real", **options: object) -> StableSSMForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "d_model": 8, "n_layers": 2, "d_state": 4}
    model = StableSSMForCausalLM(StableSSMConfig(**{**sizes, "mixer": mixer, **options})).double().eval()
    with torch.no_grad():  # larger than at the start, so that a text has many turns
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(2)
    return model


def tokens(batch: int, steps: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, steps))


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


def greedy(model: StableSSMForCausalLM, prompt: Tensor, count: int, **options: object) -> Tensor:
    return model.generate(prompt, max_new_tokens=count, do_sample=False, **options)[:, prompt.shape[1] :]


def padded(prompts: list[Tensor], side: str, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts (1, ·) as a batch, and its mask."""
    longest = max(prompt.shape[1] for prompt in prompts)
    gaps = [longest - prompt.shape[1] for prompt in prompts]
    places = [(gap, 0) if side == "left" else (0, gap) for gap in gaps]
    pad = torch.nn.functional.pad
    rows = [pad(prompt, place, value=fill) for prompt, place in zip(prompts, places, strict=True)]
    masks = [pad(torch.ones_like(prompt), place) for prompt, place in zip(prompts, places, strict=True)]
    return torch.cat(rows), torch.cat(masks)


def check_greedy(mixer: str, count: int) -> None:
    model, text = make(mixer), tokens(2, 3)
    ours = greedy(model, text, count)
    assert len(ours[0].unique()) > 3  # not the same token again and again
    for t in range(count):
        best = model(text, use_cache=False).logits[:, -1].argmax(-1)
        assert torch.equal(ours[:, t], best), t
        text = torch.cat([text, best[:, None]], 1)


@pytest.mark.parametrize("mixer", MIXERS)
def test_greedy_is_the_argmax_of_full_passes(mixer):
    check_greedy(mixer, 40)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_greedy_is_the_argmax_of_full_passes_for_a_thousand_tokens(mixer):
    check_greedy(mixer, 1000)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_padded_prompts_generate_what_they_generate_alone(mixer, side):
    model = make(mixer, pad_token_id=0)
    prompts = [tokens(1, length) for length in (5, 1, 9, 2, 7, 3, 9, 4)]
    rows, mask = padded(prompts, side, fill=13)
    together = greedy(model, rows, 12, attention_mask=mask)
    in_chunks = greedy(model, rows, 12, attention_mask=mask, prefill_chunk_size=4)
    for i, prompt in enumerate(prompts):
        alone = greedy(model, prompt, 12, attention_mask=torch.ones_like(prompt))[0]
        assert torch.equal(together[i], alone), i
        assert torch.equal(in_chunks[i], alone), i


@settings(max_examples=25)
@given(data=st.data(), steps=st.integers(1, 9), mixer=st.sampled_from(MIXERS))
def test_padding_anywhere_changes_no_real_token(data, steps, mixer):
    """In one call or two, with holes or without; what stands in the padding does not matter."""
    model = make(mixer)
    flags = st.lists(st.integers(0, 1), min_size=steps, max_size=steps)
    mask = torch.tensor([data.draw(flags), data.draw(flags)])
    x, cut = tokens(2, steps), data.draw(st.integers(0, steps))
    cache = StableSSMCache()
    first = model(x[:, :cut], attention_mask=mask[:, :cut], past_key_values=cache).logits
    second = model(x[:, cut:], attention_mask=mask, past_key_values=cache).logits
    together = torch.cat([first, second], 1)
    assert cache.get_seq_length() == steps
    for row, real, found in zip(x, mask.bool(), together, strict=True):
        alone = model(row[real][None]).logits[0]
        close(found[real], alone)
        before = real.cumsum(0)
        for t in range(steps):  # at padding: what the real token before it says
            close(found[t], alone[before[t] - 1] if before[t] else torch.zeros(VOCABULARY).double())


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_loss_does_not_know_on_which_side_the_padding_is(mixer):
    model, prompts = make(mixer), [tokens(1, length) for length in (6, 2, 4)]
    losses = []
    for side in ("left", "right"):
        rows, mask = padded(prompts, side)
        losses.append(model(rows, attention_mask=mask, labels=rows).loss)
    each = [torch.nn.functional.cross_entropy(model(p).logits[0, :-1], p[0, 1:], reduction="sum") for p in prompts]
    truth = sum(each) / (5 + 1 + 3)
    for loss in losses:
        torch.testing.assert_close(loss.double(), truth, rtol=1e-5, atol=0)


@pytest.mark.parametrize("mixer", MIXERS)
def test_beams_and_samples(mixer):
    """Beam search with a cache gives what it gives without; so does sampling from one seed."""
    model, prompt = make(mixer), tokens(2, 4)
    for options in (
        {"num_beams": 3, "do_sample": False},
        {"do_sample": True, "top_k": 5},
        {"num_beams": 2, "do_sample": True},
    ):
        found = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            found.append(model.generate(prompt, max_new_tokens=8, use_cache=use_cache, **options))
        assert torch.equal(*found)


@pytest.mark.parametrize("mixer", [MIXERS[1], *(pytest.param(name, marks=pytest.mark.slow) for name in MIXERS[::2])])
def test_a_compiled_model_generates_the_same_and_compiles_a_step_once(mixer):
    model, text = make(mixer), tokens(2, 5)
    expected, counter = greedy(model, text, 30), CompileCounter()
    model.forward = torch.compile(model.forward, backend=counter)
    assert torch.equal(greedy(model, text, 30), expected)
    assert counter.frame_count <= 3  # the prompt, a step from what it leaves, a step from what a step leaves
    torch._dynamo.reset()


def test_generation_goes_on_from_a_cache():
    model, prompt = make(), tokens(2, 5)
    whole = greedy(model, prompt, 12)
    out = model.generate(prompt, max_new_tokens=6, do_sample=False, return_dict_in_generate=True)
    cache = out.past_key_values
    assert cache.get_seq_length() == out.sequences.shape[1] - 1  # the last token has not been read
    kept = copy.copy(cache)
    for own in (cache, kept):
        again = model.generate(out.sequences, max_new_tokens=6, do_sample=False, past_key_values=own)
        assert torch.equal(again[:, 5:], whole)


def test_a_cache_that_read_padding_as_text_is_refused():
    """A row that has ended is fed padding until the others have; a state cannot take it back."""
    model, text, cache = make(), tokens(2, 5), StableSSMCache()
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    model(text, attention_mask=mask, past_key_values=cache)
    model(text[:, :1], past_key_values=cache)  # read as text, in both rows
    whole = torch.cat([mask, torch.ones(2, 2, dtype=torch.long)], 1)
    truth = model(torch.cat([text, text[:, :2]], 1), attention_mask=whole).logits[:, -1]
    close(model(text[:, 1:2], attention_mask=whole, past_key_values=copy.copy(cache)).logits[:, -1], truth)
    whole[1, 5] = 0
    with pytest.raises(ArgumentError, match=r"attention_mask: expected the same padding .* row 1; continue without"):
        model(text[:, 1:2], attention_mask=whole, past_key_values=cache)


@pytest.mark.parametrize("mixer", MIXERS)
def test_documents_in_one_row_do_not_see_each_other(mixer):
    model, text = make(mixer), tokens(2, 9)
    starts = torch.zeros(2, 9, dtype=torch.bool)
    starts[:, 4] = True
    found = model(text, reset=starts).logits
    close(found[:, :4], model(text[:, :4]).logits)
    close(found[:, 4:], model(text[:, 4:]).logits)
    rows, mask = padded([text[:1], text[1:, :7]], "left")
    starts = torch.stack([starts[0], starts[0].roll(2)])
    close(model(rows, attention_mask=mask, reset=starts).logits[1, 6:], model(text[1:, 4:7]).logits[0])
    with pytest.raises(ArgumentError, match="reset: expected shape"):
        model(text, reset=starts[:, :3])


def test_one_token_after_a_cache_may_start_a_document():
    model, text, cache = make(), tokens(2, 6), StableSSMCache()
    model(text[:, :5], past_key_values=cache)
    found = model(text[:, 5:], past_key_values=cache, reset=torch.tensor([[True], [False]])).logits[:, 0]
    close(found[0], model(text[:1, 5:]).logits[0, 0])
    close(found[1], model(text[1:]).logits[0, -1])


def test_rows_of_a_cache():
    model, text, cache = make(), tokens(3, 5), StableSSMCache()
    assert (cache.batch_size, len(cache), cache.get_seq_length()) == (-1, 0, 0)
    model(text, past_key_values=cache)
    assert (cache.batch_size, len(cache), cache.get_seq_length()) == (3, 2, 5)
    for change, rows in (
        (lambda own: own.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda own: own.batch_select_indices(torch.tensor([1])), [1]),
        (lambda own: own.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ):
        own = copy.copy(cache)
        change(own)
        assert own.batch_size == len(rows)
        found = model(text[rows, :1], past_key_values=own).logits
        close(found, model(torch.cat([text, text[:, :1]], 1)[rows]).logits[:, -1:])
    cache.reset()
    assert (cache.batch_size, len(cache), cache.get_seq_length(), cache.padded) == (-1, 0, 0, None)
    close(model(text, past_key_values=cache).logits, model(text).logits)


@pytest.mark.parametrize("mixer", MIXERS)
def test_memory_does_not_grow_with_the_text(mixer):
    model, sizes, peaks = make(mixer), [], []
    for length in (20, 200):
        tracemalloc.start()
        cache = StableSSMCache()
        model.generate(tokens(1, 4), max_new_tokens=length, min_new_tokens=length, past_key_values=cache)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert cache.get_seq_length() == length + 3
        sizes.append(cache.nbytes)
    # 8 channels, 2 blocks: two rows of the filter, 4 states (8 channels of 4 for s4d), and the last output
    states = {"hyena-real": 4 * 8, "hyena-lru": 4 * 16, "hyena-s4d": 8 * 4 * 16}[mixer]
    assert sizes == [2 * (2 * 24 * 8 + states) + 8 * 8] * 2
    assert peaks[-1] < 1.5 * peaks[0] + 2**18


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_memory_is_flat_up_to_a_hundred_thousand_tokens(mixer):
    """Of the process: what grows is the text itself, 8 bytes a token, in a few copies."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    model, after = make(mixer, pad_token_id=0), []
    model.generate(tokens(1, 4), max_new_tokens=1000, do_sample=False)  # whatever is made once
    for length in (100, 100_000):
        cache = StableSSMCache()
        model.generate(tokens(1, 4), max_new_tokens=length, do_sample=False, past_key_values=cache)
        assert cache.get_seq_length() == length + 3
        after.append((cache.nbytes, resident()))
    assert after[0][0] == after[1][0]
    assert after[1][1] - after[0][1] < 32 * 2**20


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_comes_back_as_it_was(tmp_path, mixer, tied):
    best = ssm.reparam.get("best", b=0.7, time="discrete" if mixer == "hyena-lru" else "continuous")
    model, x = make(mixer, tie_word_embeddings=tied, map=best), tokens(2, 9)
    model.save_pretrained(tmp_path)
    files = {"checksums.json", "config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == files
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is StableSSMForCausalLM
    assert again.config.map_options["b"] == 0.7
    assert repr(again.network) == repr(model.network)
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.data_ptr() % 64 == 0 for p in again.parameters())  # not as in the mapped file
    assert torch.equal(again(x).logits, model(x).logits)
    assert torch.equal(greedy(again, x, 5), greedy(model, x, 5))
    short = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    recurrent = {name for name, p in short.named_parameters() if p.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in recurrent} == set(
        short.network.body.blocks[0].mixer.inner.recurrent_parameters
    )
    assert short(x).logits.isfinite().all()
    assert greedy(short, x, 3).shape == (2, 3)


def test_a_model_from_before_moving_averages_comes_back_as_it_was(tmp_path):
    model, x = make("real", mixer_options={"average": False}), tokens(2, 9)
    model.save_pretrained(tmp_path)
    (tmp_path / "checksums.json").unlink()
    content = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del content["mixer_options"]["average"]  # an old file has the time scales alone
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.mixer_options == {"average": False, "timescales": [2.0, 2000.0]}
    assert torch.equal(again(x).logits, model(x).logits)
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "again")(x).logits, model(x).logits)
    assert make("real").config.mixer_options == {"average": True, "timescales": [2.0, 2000.0]}


def test_what_a_file_lacks_is_drawn_as_at_the_start(tmp_path):
    model = make(d_state=6)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    start = weights["network.body.blocks.1.mixer.inner.w"].clone()
    lost = ("mixer.inner.w", "mixer.output.weight", "mixer.filter")
    save_file({k: v + 1 for k, v in weights.items() if not k.endswith(lost)}, file, {"format": "pt"})
    with pytest.raises(ArgumentError, match=r"model\.safetensors: expected .* no checksums\.json beside it"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "checksums.json").unlink()
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    found = dict(again.named_parameters())
    for name, value in weights.items():
        if not name.endswith(lost):
            assert torch.equal(found[name], value + 1), name
    torch.testing.assert_close(found["network.body.blocks.1.mixer.inner.w"], start, rtol=1e-5, atol=0)
    small = found["network.body.blocks.1.mixer.output.weight"].abs().max()
    assert 0 < small <= 0.5 * 8**-0.5


def test_wrapping_leaves_every_weight_alone():
    torch.manual_seed(0)
    plain = LanguageModel(VOCABULARY, d_model=8, n_layers=2, d_state=4, mixer="hyena-s4d", map="softplus", tied=False)
    before = copy.deepcopy(plain.state_dict())
    wrapped = StableSSMForCausalLM.of(plain, eos_token_id=3)
    assert wrapped.network is plain
    assert all(torch.equal(value, before[name]) for name, value in wrapped.network.state_dict().items())
    assert wrapped.generation_config.eos_token_id == 3
    torch.manual_seed(0)
    fresh = StableSSMForCausalLM(wrapped.config)
    assert all(torch.equal(value, before[name]) for name, value in fresh.network.state_dict().items())
    x = tokens(1, 6)
    torch.testing.assert_close(wrapped(x).logits, plain(x))
    torch.testing.assert_close(wrapped(inputs_embeds=wrapped.get_input_embeddings()(x)).logits, plain(x))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_run_of_the_trainer(tmp_path, checkpointing):
    model = make(d_model=16, d_state=8).float()
    data = [{"input_ids": row, "labels": row} for row in tokens(40, 6).repeat(1, 3)]
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=20, per_device_train_batch_size=8, learning_rate=0.01, logging_steps=10, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, gradient_checkpointing=checkpointing,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(ssm.param_groups(model, 0.01, weight_decay=0.1))
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, optimizers=(optimizer, None)
    )
    before = trainer.evaluate()["eval_loss"]
    assert trainer.train().global_step == 20
    assert trainer.evaluate()["eval_loss"] < before - 0.2
    assert model.is_gradient_checkpointing is checkpointing


@pytest.mark.parametrize("mixer", MIXERS)
def test_gradient_checkpointing_gives_the_same_gradients(mixer):
    model, x, grads = make(mixer).train(), tokens(2, 12), []
    for reentrant in (None, False, True):
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert model.network.body.gradient_checkpointing is (reentrant is not None)
        model.zero_grad()
        model(x, labels=x).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for truth, *others in zip(*grads, strict=True):
        for ours in others:
            close(ours, truth)


def test_more_tokens(tmp_path):
    for tied in (True, False):
        model, x = make(tie_word_embeddings=tied), tokens(2, 5)
        before = model(x).logits
        model.resize_token_embeddings(VOCABULARY + 4)
        after = model(torch.cat([x, torch.full((2, 1), VOCABULARY + 3)], 1)).logits
        assert after.shape == (2, 6, VOCABULARY + 4)
        close(after[:, :5, :VOCABULARY], before)
        ssm.save(model.network, tmp_path / str(tied))
        close(ssm.load(tmp_path / str(tied))(x)[..., :VOCABULARY], before)


def test_outputs_that_are_asked_for():
    model, x = make(), tokens(2, 7)
    out = model(x, output_hidden_states=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 7, 8)] * 3
    close(model.network.logits(out.hidden_states[-1]), out.logits)
    close(out.hidden_states[0], model.get_input_embeddings()(x))
    close(model(x, logits_to_keep=2).logits, out.logits[:, -2:])
    close(model(x, logits_to_keep=torch.tensor([1, 3])).logits, out.logits[:, [1, 3]])
    assert model(x, use_cache=False).past_key_values is None
    assert model.train()(x).past_key_values is None
    close(model.eval()(x, return_dict=False)[0], out.logits)


def test_instruments_measure_it():
    model = make()
    system = instruments.systems.as_system(model)
    assert system.streams
    assert ssm.memory_function(model, 12, samples=2, ascent=0).value.shape == (12,)
    assert ssm.stability_radius(model) == float("inf")


def test_the_config_is_plain():
    config = StableSSMConfig(vocab_size=9, map=ssm.reparam.get("best", b=0.5), d_model=12, n_layers=3)
    assert (config.map, config.map_options, config.hidden_size, config.num_hidden_layers) == (
        "best",
        {"a": 1.0, "b": 0.5},
        12,
        3,
    )
    again = StableSSMConfig.from_dict(json.loads(config.to_json_string()))
    assert again.network() == config.network()
    with pytest.raises(ArgumentError, match="d_model: expected"):
        StableSSMConfig(d_model=0)


def test_bad_inputs_are_named():
    model, x = make(), tokens(2, 5)
    with pytest.raises(ArgumentError, match="past_key_values: expected a StableSSMCache, got DynamicCache"):
        model(x, past_key_values=transformers.DynamicCache())
    with pytest.raises(ArgumentError, match="input_ids, inputs_embeds: expected one of them"):
        model()
    with pytest.raises(ArgumentError, match="attention_mask: expected"):
        model(x, attention_mask=torch.ones(2, 3))
    with pytest.raises(ArgumentError, match=r"x: expected tokens from 0 to 30"):
        model(x + VOCABULARY)
    with pytest.raises(ArgumentError, match="tokens_to_remove: expected 0"):
        model(x).past_key_values.crop(-1)

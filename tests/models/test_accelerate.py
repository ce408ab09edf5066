"""Models of ``transformers`` on our operators: the same logits, and the right state in chunks and with padding."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_parameters import randomized
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import families
from stablessm.scan.cpu import mixer_step

transformers = pytest.importorskip("transformers")

VOCABULARY = 23
TOLERANCE = 1e-4


def config_of(family: str, draw: Any) -> Any:
    """A random small configuration of a family."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    hidden, layers, states = pick(8, 16), pick(1, 2), pick(1, 3, 16)
    shared = {"vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers}
    inner = {"state_size": states, "conv_kernel": pick(2, 4), "use_conv_bias": pick(True, False)}
    if family == "mamba":
        return transformers.MambaConfig(
            **shared, **inner, expand=pick(1, 2), time_step_rank=pick(1, 3), use_bias=pick(True, False)
        )
    if family == "falcon":
        return transformers.FalconMambaConfig(**shared, **inner, expand=pick(1, 2), time_step_rank=pick(1, 3))
    if family == "mamba2":
        heads = pick(2, 4)
        return transformers.Mamba2Config(
            **shared, **inner, expand=2, num_heads=heads, head_dim=2 * hidden // heads, n_groups=pick(1, 2),
            chunk_size=pick(4, 8), use_bias=pick(True, False), time_step_limit=pick((0.0, float("inf")), (0.01, 0.5)),
        )  # fmt: skip
    if family == "jamba":
        return transformers.JambaConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=12, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=2, attn_layer_period=4, attn_layer_offset=2, num_experts=2, num_experts_per_tok=1,
            mamba_d_state=states, mamba_d_conv=4, mamba_dt_rank=pick(1, 3), mamba_expand=2, use_mamba_kernels=False,
            pad_token_id=0,
        )  # fmt: skip
    return transformers.RecurrentGemmaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, lru_width=hidden, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=12, conv1d_width=pick(2, 4), attention_window_size=64,
    )  # fmt: skip


FAMILIES = ("mamba", "falcon", "mamba2", "jamba", "recurrent gemma")


def pair(family: str, draw: Any, seed: int) -> tuple[nn.Module, nn.Module]:
    """A model with random weights, and its accelerated copy."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(family, draw))
    model = randomized(model).eval()
    return model, ssm.accelerate(copy.deepcopy(model))


def tokens(batch: int, steps: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, steps))  # special tokens would mean padding


@pytest.mark.parametrize("family", FAMILIES[:3])
@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(data=st.data(), steps=st.integers(1, 12), seed=st.integers(0, 999))
def test_a_model_in_float64_is_computed_in_float64(family: str, data: st.DataObject, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = randomized(transformers.AutoModel.from_config(config_of(family, data.draw))).eval().double()
    model = ssm.accelerate(model)
    x, change = torch.randn(2, 1, steps, model.config.hidden_size, dtype=torch.float64)
    states = lambda x: model(inputs_embeds=x, use_cache=False).last_hidden_state  # noqa: E731
    size = 1e-6  # rounding in float32 would be as large as the change of the states
    slope = (states(x + size * change) - states(x - size * change)) / (2 * size)
    x.requires_grad_(True)
    weights = torch.randn_like(slope)
    (gradient,) = torch.autograd.grad((states(x) * weights).sum(), x)
    torch.testing.assert_close((slope * weights).sum(), (gradient * change).sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(data=st.data(), steps=st.integers(1, 12), seed=st.integers(0, 999))
def test_logits_gradients_and_texts_are_those_of_transformers(
    family: str, data: st.DataObject, steps: int, seed: int
) -> None:
    model, ours = pair(family, data.draw, seed)
    x = tokens(2, steps)
    options = {"use_cache": False}
    truth, result = model(x, **options).logits, ours(x, **options).logits
    assert (result - truth).abs().max() <= TOLERANCE * truth.abs().max().clamp(min=1)
    weights = dict(model.named_parameters())
    expected = torch.autograd.grad(truth.square().sum(), list(weights.values()), allow_unused=True)
    found = torch.autograd.grad(result.square().sum(), list(ours.parameters()), allow_unused=True)
    for name, u, v in zip(weights, found, expected, strict=True):
        assert (u is None) == (v is None), name
        if u is not None and v is not None:
            assert (u - v).abs().max() <= 1e-3 * v.abs().max().clamp(min=1e-2), name
    with torch.no_grad():
        length = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        text, other = model.generate(x, **length, use_cache=False), ours.generate(x, **length)
    assert torch.equal(text, other)  # without a cache, since the steps of transformers' Mamba2 ignore time_step_limit


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(data=st.data(), seed=st.integers(0, 999))
@torch.no_grad()
def test_a_pickled_model_generates_the_same_text(family: str, data: st.DataObject, seed: int) -> None:
    model, ours = pair(family, data.draw, seed)
    if family != "jamba":  # its experts lack float64
        model, ours = model.double(), ours.double()
    x, length = tokens(2, 5), {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    again = pickle.loads(pickle.dumps(ours))
    for weight in ours.parameters():
        weight.zero_()
    assert torch.equal(again.generate(x, **length), model.generate(x, **length, use_cache=False))


def start(family: str, ours: nn.Module) -> tuple[str, Any]:
    """The argument of a family that takes the cache, and a new cache."""
    name = "past_key_values" if family in ("jamba", "recurrent gemma") else "cache_params"
    return name, transformers.DynamicCache(config=ours.config)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data(), cut=st.integers(1, 9), seed=st.integers(0, 999))
@torch.no_grad()
def test_chunks_continue_from_the_state(family: str, data: st.DataObject, cut: int, seed: int) -> None:
    _, ours = pair(family, data.draw, seed)
    x = tokens(2, 10)
    whole = ours(x, use_cache=False).logits
    name, cache = start(family, ours)
    joined = torch.cat([ours(part, use_cache=True, **{name: cache}).logits for part in (x[:, :cut], x[:, cut:])], 1)
    assert (joined - whole).abs().max() <= TOLERANCE * whole.abs().max().clamp(min=1)


@pytest.mark.parametrize(("family", "side"), [(family, side) for family in FAMILIES for side in ("left", "right")])
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data(), length=st.integers(1, 9), seed=st.integers(0, 999))
@torch.no_grad()
def test_padding_changes_no_real_token_and_no_state(
    family: str, side: str, data: st.DataObject, length: int, seed: int
) -> None:
    _, ours = pair(family, data.draw, seed)
    x, mask = tokens(2, 10), torch.ones(2, 10, dtype=torch.long)
    real = slice(10 - length, 10) if side == "left" else slice(0, length)
    mask[0] = 0
    mask[0, real] = 1
    (name, cache), (_, own) = start(family, ours), start(family, ours)
    places = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if name == "past_key_values" else {}
    padded = ours(x, attention_mask=mask, use_cache=True, **{name: cache}, **places).logits
    alone = ours(x[:1, real], use_cache=True, **{name: own}).logits
    size = TOLERANCE * alone.abs().max().clamp(min=1)
    assert (padded[:1, real] - alone).abs().max() <= size
    if name == "past_key_values" and side == "right":
        return  # attention needs padding on the left before it continues
    again = tokens(2, 3)
    if places:
        places = {"position_ids": mask.sum(1, keepdim=True) + torch.arange(3)}
        mask = torch.cat([mask, torch.ones(2, 3, dtype=torch.long)], 1)
    after = ours(again, **{name: cache}, **places, **({"attention_mask": mask} if places else {})).logits[:1]
    assert (after - ours(again[:1], **{name: own}).logits).abs().max() <= size


@contextmanager
def steps_in_one_call() -> Iterator[mock.Mock]:
    """Counts the steps of mixers that the CPU kernels compute in one call."""
    run = mixer_step.Step.__call__
    with mock.patch.object(mixer_step.Step, "__call__", autospec=True, side_effect=run) as count:
        yield count


def by_steps(family: str, ours: nn.Module, x: Tensor, prompt: int = 3) -> Tensor:
    """The logits of a prompt and of single tokens after it."""
    name, cache = start(family, ours)
    parts = (x[:, :prompt], *x[:, prompt:].split(1, 1))
    return torch.cat([ours(part, use_cache=True, **{name: cache}).logits for part in parts], 1)


def check_steps(family: str, ours: nn.Module, x: Tensor, mixers: int, tolerance: float = TOLERANCE) -> None:
    """Single tokens have the logits of the whole sequence; so many mixers compute each of them in one call."""
    with steps_in_one_call() as count:
        steps = by_steps(family, ours, x)
    whole = ours(x, use_cache=False).logits
    assert (steps - whole).abs().max() <= tolerance * whole.abs().max().clamp(min=1)
    assert count.call_count == mixers * (x.shape[1] - 3)


def mixers_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith(("MambaMixer", "Mamba2Mixer"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES[:4])
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data(), batch=st.sampled_from([1, 3]), seed=st.integers(0, 999))
@torch.no_grad()
def test_a_mixer_computes_a_token_in_one_call(
    family: str, dtype: torch.dtype, data: st.DataObject, batch: int, seed: int
) -> None:
    ours = pair(family, data.draw, seed)[1]
    if family == "jamba" and dtype != torch.float32:
        return  # its experts lack float64, and bfloat16 for small sizes
    tolerance = {torch.float32: TOLERANCE, torch.float64: 1e-9, torch.bfloat16: 0.1}[dtype]
    check_steps(family, ours.to(dtype), tokens(batch, 6), len(mixers_of(ours)), tolerance)


def small(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 3}
    return ssm.accelerate(
        randomized(transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, **options)))
    ).eval()


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def replaced(model: nn.Module) -> None:
    old = mixers_of(model)[0].in_proj
    new = Doubled(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    mixers_of(model)[0].in_proj = new


FALLBACKS: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda model: mixers_of(model)[0].in_proj.register_forward_hook(lambda *args: 2 * args[2]),
    "hook before": lambda model: mixers_of(model)[0].x_proj.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
    "forward": lambda model: setattr(mixers_of(model)[0].in_proj, "forward", lambda x: x.repeat(1, 1, 4)),
    "another class": replaced,
    "strides": lambda model: setattr(mixers_of(model)[0].A_log, "data", mixers_of(model)[0].A_log.mT.contiguous().mT),
    "no bias": lambda model: setattr(mixers_of(model)[0].dt_proj, "bias", None),
}
"""Changes of one mixer, whose steps the kernels then do not compute."""


@pytest.mark.parametrize("change", FALLBACKS)
@torch.no_grad()
def test_a_mixer_with_other_parts_computes_its_steps_by_its_parts(change: str) -> None:
    model, x = small(), tokens(2, 6)
    check_steps("mamba", model, x, 2)
    before = by_steps("mamba", model, x)
    FALLBACKS[change](model)
    check_steps("mamba", model, x, 1)
    assert change == "strides" or not torch.allclose(by_steps("mamba", model, x), before)


def test_other_calls_compute_their_steps_by_their_parts() -> None:
    with torch.no_grad():
        check_steps("mamba", small(hidden_act="gelu"), tokens(1, 6), 0)
        check_steps("mamba", small(), tokens(33, 6), 0)
        check_steps("mamba", small().half(), tokens(2, 6), 0, 0.1)
        with torch.autocast("cpu", torch.bfloat16):
            check_steps("mamba", small(), tokens(2, 6), 0, 0.1)
    check_steps("mamba", small(), tokens(2, 6), 0)  # gradients are recorded


@torch.no_grad()
def test_a_step_has_the_weights_of_the_moment() -> None:
    model, x = small(), tokens(2, 6)
    mixer = mixers_of(model)[0]

    def same() -> None:
        check_steps("mamba", model, x, 2)

    same()
    mixer.conv1d.weight.mul_(2)
    same()
    mixer.out_proj.weight.data = torch.randn_like(mixer.out_proj.weight)
    same()
    mixer.D = nn.Parameter(torch.randn_like(mixer.D))
    same()
    model.load_state_dict({name: 1.1 * weight for name, weight in model.state_dict().items()}, assign=True)
    same()
    model.double()
    same()
    with torch.inference_mode():
        same()
    same()


@torch.no_grad()
def test_threads_generate_at_once() -> None:
    model, texts = small(), [tokens(2, 40) for _ in range(4)]
    alone = [by_steps("mamba", model, x) for x in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(torch.no_grad()(lambda x: by_steps("mamba", model, x)), texts))
    assert all(map(torch.equal, together, alone))


@torch.no_grad()
def test_the_state_of_recurrent_gemma_is_kept_in_the_cache() -> None:
    ours = ssm.accelerate(families.random_model("recurrent_gemma"))
    report = ssm.check_state(ours, progress=False)
    assert [case.name for case in report.cases if not case.passed] == ["right padding"]  # of attention in a window


def test_a_model_without_such_mixers_is_refused() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^model: expected a model of transformers with one of the mixers"):
        ssm.accelerate(nn.Linear(2, 2))


@pytest.mark.parametrize("model", [None, "name", 5])
def test_only_modules_are_accelerated(model):
    with pytest.raises(ssm.ArgumentError, match=r"model: expected an nn\.Module"):
        ssm.accelerate(model)


def test_an_older_transformers_is_named(monkeypatch):
    model = transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    before = {module: vars(module).get("forward") for module in model.modules()}
    monkeypatch.delattr(transformers.cache_utils.Cache, "get_conv_state")
    with pytest.raises(ssm.BackendUnavailableError, match=r"transformers 5\.18 or newer"):
        ssm.accelerate(model)
    assert all(vars(module).get("forward") is before[module] for module in model.modules())

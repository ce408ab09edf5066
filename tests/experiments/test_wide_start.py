"""A language model scaled by width and depth starts at the loss of a uniform guess, and the first update helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.experiments.stable_ssm.language_study import SCHEMES
from stablessm.experiments.stable_ssm.wide_start import scaled_start
from stablessm.models import LanguageModel

VOCABULARY = 8192
RATES = tuple(0.01 / warmup for warmup in (300, 100, 30, 10))


def first_update(model: nn.Module, loss: Callable[[], Tensor], rates: Sequence[float]) -> list[float]:
    """The loss of a model, then its loss after one step of Adam with each rate, always from the same weights."""
    parameters = [*model.parameters()]
    before = loss()
    gradients = torch.autograd.grad(before, parameters, allow_unused=True)
    found, known = [float(before.detach())], [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for rate in rates:
            for p, start, gradient in zip(parameters, known, gradients, strict=True):
                if gradient is not None:
                    p.copy_(start - rate * gradient / (gradient.abs() + 1e-8))
            found.append(float(loss()))
        for p, start in zip(parameters, known, strict=True):
            p.copy_(start)
    return found


def updates(scheme: str, width: int, layers: int, *, scaled: bool = True, seed: int = 0) -> list[float]:
    """The loss on tokens with the frequencies of Zipf's law, before and after the first update at each rate."""
    map, options = SCHEMES[scheme]
    torch.manual_seed(seed)
    model = LanguageModel(
        VOCABULARY, d_model=width, n_layers=layers, d_state=32, map=map, map_options=options,
        mixer_options={"time": "discrete", "timescales": [2.0, 1000.0]},
    )  # fmt: skip
    model = scaled_start(model) if scaled else model
    shares = 1 / torch.arange(1, VOCABULARY + 1, dtype=torch.float32)
    drawn = torch.multinomial(shares, 2 * 65, True, generator=torch.Generator().manual_seed(seed)).view(2, 65)
    again = F.pad(drawn[:, 1:] == drawn[:, :-1], (1, 0))
    tokens = torch.where(again, (drawn + 7) % VOCABULARY, drawn)  # in a text, a token seldom follows itself
    return first_update(
        model, lambda: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()), RATES
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "layers"), [(64, 2), (64, 12), (256, 2)])
def test_a_scaled_start_is_healthy(scheme, width, layers):
    start, *after = updates(scheme, width, layers)
    assert abs(start - math.log(VOCABULARY)) < 0.05
    assert max(after) < start


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "layers"), [(512, 4), (1024, 2), (2048, 2), (128, 32)])
def test_a_scaled_start_is_healthy_at_large_widths_and_depths(scheme, width, layers):
    start, *after = updates(scheme, width, layers)
    assert abs(start - math.log(VOCABULARY)) < 0.05
    assert max(after) < start


def test_a_plain_start_depends_on_the_width():
    start, *_ = updates("exp", 1024, 1, scaled=False)
    assert start - math.log(VOCABULARY) > 0.05


def test_only_the_scales_of_embeddings_and_logits_change_the_function():
    models = [LanguageModel(50, d_model=512, n_layers=2, d_state=8, mixer_options={"time": "discrete"}) for _ in "ab"]
    models[1].load_state_dict(models[0].state_dict())
    scaled_start(models[1])
    x = torch.randn(2, 20, 512)
    with torch.no_grad():
        plain, scaled = (model.body.blocks[0](x)[0] for model in models)
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-4)


def test_the_first_update_leaves_the_model_as_it_was():
    model = LanguageModel(50, d_model=8, n_layers=1, d_state=4)
    tokens = torch.randint(0, 50, (2, 9))

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    before = {name: p.clone() for name, p in model.named_parameters()}
    start, after = first_update(model, loss, [1e-3])
    assert loss().item() == start > after
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())

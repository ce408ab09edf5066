"""Hugging Face's form of the language model with weights of few bits, whichever way they were made."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis.strategies as st
import pytest
import torch
import transformers
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from stablessm.models import StableSSMConfig, StableSSMForCausalLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class _Int8:
    """Rows of int8 with a scale each, as weight-only quantizers store them."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), bias)


def _rows(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    return (linear.weight.detach() / scale).round().to(torch.int8), scale


class Foreign(_Int8, nn.Module):
    """A module that is no ``nn.Linear``, with buffers."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = _rows(linear)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = linear.bias


class Subclass(_Int8, nn.Linear):
    """A subclass of ``nn.Linear`` with a parameter of whole numbers, like that of bitsandbytes."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        weight, scale = _rows(linear)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = linear.bias


def replaced(model: nn.Module, kind: type) -> nn.Module:
    for name, child in model.named_children():
        setattr(model, name, kind(child)) if type(child) is nn.Linear else replaced(child, kind)
    return model


def loaded(model: nn.Module, folder: str, dtype: torch.dtype | str) -> nn.Module:
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype)


WAYS: dict[str, Callable[[nn.Module, str], nn.Module]] = {
    "dynamic": lambda model, _: torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8),
    "dynamic, by default": lambda model, _: torch.ao.quantization.quantize_dynamic(model),
    "foreign modules": lambda model, _: replaced(model, Foreign),
    "subclasses": lambda model, _: replaced(model, Subclass),
    "half": lambda model, _: model.half(),
    "bfloat16": lambda model, _: model.to(torch.bfloat16),
    "loaded as float16": lambda model, folder: loaded(model, folder, torch.float16),
    "loaded as bfloat16": lambda model, folder: loaded(model, folder, torch.bfloat16),
    "loaded as stored": lambda model, folder: loaded(model, folder, "auto"),
    "bfloat16 with subclasses": lambda model, folder: replaced(loaded(model, folder, torch.bfloat16), Subclass),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@settings(deadline=None, max_examples=15)
@given(
    way=st.sampled_from(list(WAYS)),
    mixer=st.sampled_from(
        ["s4d", "lru", "real", "hyena-s4d", "hyena-lru", "hyena-real", "mingru", "rglru", "hgrn", "selective"]
    ),
    tied=st.booleans(),
    steps=st.integers(2, 20),
    seed=st.integers(0, 2**16),
)
@torch.no_grad()
def test_logits_are_close_and_text_is_generated(way, mixer, tied, steps, seed, tmp_path_factory) -> None:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "d_state": 4}
    model = StableSSMForCausalLM(StableSSMConfig(**sizes, mixer=mixer, tied=tied)).eval()
    tokens = torch.randint(0, 50, (2, steps))
    truth = model(tokens).logits
    small = WAYS[way](copy.deepcopy(model), str(tmp_path_factory.mktemp("model"))).eval()
    logits = small(tokens).logits.float()
    assert (logits - truth).norm() < 0.1 * truth.norm()
    assert small.generate(tokens, max_new_tokens=3, do_sample=False).shape == (2, steps + 3)

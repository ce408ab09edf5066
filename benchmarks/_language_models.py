"""The language models that ``language.py`` compares: ours, Mamba and a transformer, of about the same size."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

OURS, MAMBA, ATTENTION = "stablessm", "Mamba", "attention"
KERNELS = ("mamba_ssm", "causal_conv1d")
"""What transformers' Mamba needs for its fast path."""


@dataclass(frozen=True)
class Size:
    """Of a transformer: the others get the shape that has about as many parameters."""

    d_model: int
    layers: int
    length: int
    """Of the sequences that are trained on."""
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    """Tokens before those that are generated."""
    tokens: int
    """How many these are."""
    heads: int = 12
    vocabulary: int = 8192


def ours(size: Size) -> nn.Module:
    """Hyena blocks with a real recurrence of 128 states and the best map, MLPs four times as wide."""
    from stablessm.models import StableSSMConfig, StableSSMForCausalLM

    states = min(128, size.d_model)
    config = StableSSMConfig(
        vocab_size=size.vocabulary, d_model=size.d_model, n_layers=size.layers, d_state=states, mixer="hyena-real",
        map="best", mixer_options={"time": "discrete"}, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return StableSSMForCausalLM(config)


def mamba(size: Size) -> nn.Module:
    """Twice as many blocks, which have no MLP; PyTorch alone."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=size.vocabulary, hidden_size=size.d_model, num_hidden_layers=2 * size.layers, state_size=16,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return MambaForCausalLM(config)


def attention(size: Size) -> nn.Module:
    """GPT-2's shape with rotary positions, which have no longest context, and PyTorch's fused attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocabulary, hidden_size=size.d_model, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=8 * size.d_model // 3 // 8 * 8,
        max_position_embeddings=2 * max(*size.contexts, size.length), tie_word_embeddings=True,
        attn_implementation="sdpa", bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


CONTENDERS: dict[str, Callable[[Size], nn.Module]] = {OURS: ours, MAMBA: mamba, ATTENTION: attention}


def built(name: str, size: Size, device: str) -> nn.Module:
    """A contender with random weights, on the device."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CONTENDERS[name](size).to(device)


def versions() -> dict[str, str]:
    """Of the library of the peers, and of the kernels of Mamba's fast path or why they are not there."""
    import transformers

    kernels = {f"Mamba's fast path ({name})": _version(name) for name in KERNELS}
    return {"transformers": str(transformers.__version__), **kernels}


def parameters(model: nn.Module) -> int:
    """How many, tied ones once."""
    return sum(p.numel() for p in model.parameters())


class TokenClock:
    """A streamer: when the prompt had been read, and each token was there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        """Called with the prompt, and then with every token, which is on the host by then."""
        value.cpu()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called at the end."""

    def milliseconds(self) -> tuple[float, list[float]]:
        """Until the first token, and from each to the next."""
        steps = [1e3 * (b - a) for a, b in zip(self.times, self.times[1:], strict=False)]
        return steps[0], steps[1:]


@torch.no_grad()
def generated(model: Any, prompt: Tensor, tokens: int, clock: TokenClock | None = None) -> Any:
    """Greedy, as a user calls it: ``sequences`` and the state."""
    return model.eval().generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
        use_cache=True, return_dict_in_generate=True, streamer=clock,
    )  # fmt: skip


def state_bytes(output: Any) -> int:
    """What a model carries from token to token."""
    state = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in _tensors(state)}.values())


@torch.no_grad()
def gap(model: Any, prompt: Tensor, tokens: int) -> float:
    """How far the logit of a token that ``generate`` chose is below the largest of a full forward pass, at most."""
    whole = generated(model, prompt, tokens).sequences
    logits = model(whole[:, :-1], use_cache=False).logits[:, prompt.shape[1] - 1 :].float()
    chosen = logits.gather(-1, whole[:, prompt.shape[1] :, None])[..., 0]
    return float((logits.amax(-1) - chosen).max())


def _tensors(held: Any, depth: int = 6) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif depth and not isinstance(held, str | bytes | int | float | bool | type | None):
        parts = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
        for part in parts or getattr(held, "__dict__", {}).values():
            yield from _tensors(part, depth - 1)


def _version(name: str) -> str:
    try:
        return str(getattr(importlib.import_module(name), "__version__", "0"))
    except Exception as error:  # a package built for another PyTorch fails in its own way
        return f"not available: {type(error).__name__}"

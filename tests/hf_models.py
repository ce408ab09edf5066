"""Small random models of the Hugging Face architectures the instruments are tested on."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import PreTrainedModel

transformers.logging.set_verbosity_error()

WINDOW, VOCABULARY = 8, 64
_SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "mamba": ("Mamba", {**_SIZE, "state_size": 8}),
    "mamba2": ("Mamba2", {**_SIZE, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}),
    "rwkv": ("Rwkv", {**_SIZE, "attention_hidden_size": 32}),
    "recurrent-gemma": (
        "RecurrentGemma",
        {**_SIZE, "num_hidden_layers": 3, "num_attention_heads": 4, "lru_width": 32, "intermediate_size": 64},
    ),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "llama": ("Llama", {**_SIZE, **_ATTENTION}),
    "mistral": ("Mistral", {**_SIZE, **_ATTENTION, "sliding_window": WINDOW}),
}


def model(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    family, options = CONFIGS[name]
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    config = getattr(transformers, f"{family}Config")(**options, **_SPECIAL)
    return getattr(transformers, f"{family}{head}")(config).to(dtype).eval()

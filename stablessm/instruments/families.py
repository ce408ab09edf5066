"""Small random models of the recurrent and hybrid model families of ``transformers``, to test instruments with."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stablessm._checked import Seed, checked
from stablessm._errors import unknown_name
from stablessm._optional import require

_STATEFUL = re.compile(
    r"_is_stateful = True|create_recurrent_attention_mask|update_(conv|recurrent)_state|linear_cache"
)
"""Matches the code of a model family with a recurrent state."""
GAIN = 1.0
"""Standard deviation of the entries of a random matrix, times the square root of its number of columns."""

_SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "state_size": 8, "expand": 2,
    "chunk_size": 8,
    "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_dt_rank": 4,
    "time_step_rank": 4, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_heads": 4, "linear_head_dim": 8, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Small sizes, which are used if the config of a family has a field of this name."""

_LINEAR, _FULL = "linear_attention", "full_attention"
_OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {
        "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL], "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
    },
    "bamba": {"attn_layer_indices": [2]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "glm5_next_text": {"qk_rope_head_dim": 0, "head_dim": 0, "num_key_value_heads": 4, "index_topk": 256},
    "granitemoehybrid": {"layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR]},
    "inkling_text": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "rel_extent": 64},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 2},
    "deepseek_v4": {"o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "num_key_value_heads": 1},
    "kimi_linear": {
        "num_experts_per_token": 2, "num_key_value_heads": 4, "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL],
    },
    "lfm2": {"layer_types": ["conv", "conv", _FULL, "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", _FULL, "conv"]},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "nemotron_h": {
        "layers_block_type": [_LINEAR, "moe", _FULL, "mlp", _LINEAR], "mamba_num_heads": 8, "mamba_head_dim": 8,
        "ssm_state_size": 8, "n_groups": 2, "moe_shared_expert_intermediate_size": 16,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 64,
        "indexer_compress_ratio": 4, "hc_lowrank": 8, "ple_layer_ids": [],
    },
    "recurrent_gemma": {"lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 16},
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {"hidden_size": 128, "num_heads": 4},  # smaller sizes are rounded up in the model and not in its cache
    "zamba": {"num_hidden_layers": 5, "layers_block_type": [_LINEAR, _LINEAR, "hybrid", _LINEAR, "hybrid"]},
    "zamba2": {"layers_block_type": [_LINEAR, _LINEAR, "hybrid", _LINEAR], "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Sizes of families that need special values."""
_RENAMED = ("granitemoehybrid", "nemotron_h", "zamba", "zamba2")
"""Families whose layers had other names in earlier versions of ``transformers``."""


def names() -> list[str]:
    """Return the names of the recurrent and hybrid model families of the installed ``transformers`` package.

    The families are found in the source code of the package.

    Multimodal families (images, sound and text) are left out; the text model of such a family is a separate family.

    >>> {"mamba", "rwkv", "zamba2"} <= set(names()), "llama" in names()
    (True, False)
    """
    folder = Path(str(require("transformers", "a family of models").__file__)).parent / "models"
    files = sorted(folder.glob("*/modeling_*.py"))
    found = {file.parent.name for file in files if _STATEFUL.search(file.read_text(encoding="utf-8"))}
    return sorted(name for name in found if _model_type(name) is not None)


def _model_type(family: str) -> str | None:
    """Return the type of the text model of a model family, or None if the family has no separate text model."""
    from transformers.models.auto import modeling_auto as auto

    tables: tuple[Any, Any] = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES)
    kinds = [(f"{family}_text", tables[0]), (family, tables[0]), (f"{family}_text", tables[1])]
    return next((kind for kind, table in kinds if kind in table), None)


@checked
def random_model(family: str, *, seed: Seed = 0, dtype: Any = torch.float32) -> nn.Module:
    """Return a small model of a family with random weights.

    The weights are so large that an error in the state changes the outputs: the entries of every matrix have the
    standard deviation 1 / √columns, and embeddings have the standard deviation 1. With the initial weights of
    ``transformers``, which are smaller, a model forgets within a few steps.

    Args:
        family: Name of a family, such as ``mamba`` or ``falcon-mamba``: the ``model_type`` of its config.
        seed: Seed of the weights. The global random state is not changed.
        dtype: Dtype of the weights.

    >>> sum(weight.numel() for weight in random_model("mamba").parameters()) < 100_000
    True
    """
    transformers = require("transformers", "a family of models")
    name = family.lower().replace("-", "_")
    kind = _model_type(name) or (name if name in transformers.CONFIG_MAPPING else None)
    if kind is None:
        known = names()
        expected = f"a family of transformers {transformers.__version__}: {', '.join(known)}"
        raise unknown_name("family", known, family, expected)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _auto(transformers, kind).from_config(small_config(transformers, kind))
        _spread(model)
    return model.to(dtype).eval()


def _auto(transformers: Any, kind: str) -> Any:
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return transformers.AutoModelForCausalLM if kind in causal else transformers.AutoModel


def small_config(transformers: Any, kind: str) -> Any:
    """Return the config of a small model; ``kind`` is its ``model_type`` in ``transformers``."""
    cls = transformers.CONFIG_MAPPING[kind]
    known = {*transformers.AutoConfig.for_model(kind).to_dict(), *inspect.signature(cls).parameters, *cls.attribute_map}
    sizes = {name: size for name, size in _SMALL.items() if name in known}
    sizes |= _OWN.get(kind, {})
    if not hasattr(transformers.configuration_utils, "remap_legacy_layer_types") and kind in _RENAMED:
        sizes = {name: _older(size) for name, size in sizes.items()}
    return transformers.AutoConfig.for_model(kind, **sizes)


def _older(size: Any) -> Any:
    names = {_LINEAR: "mamba", _FULL: "attention"}
    return [names.get(name, name) for name in size] if isinstance(size, list) else size


@torch.no_grad()
def _spread(model: nn.Module) -> None:
    """Draw the weight matrices of a model again, with larger entries than before."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    for name, weight in model.named_parameters():
        if weight.dim() < 2 or len(weight) == 1 or not weight.is_floating_point() or "log" in name.lower():
            continue
        columns = 1 if id(weight) in tables else weight[0].numel() if weight.dim() == 2 else weight.shape[-1]
        weight.copy_(torch.randn_like(weight) * (1.0 if id(weight) in tables else GAIN) / columns**0.5)

"""Sequence models made of layers: classifier, regressor, language model, and their parts."""

from typing import TYPE_CHECKING, Any

from stablessm._lazy import public
from stablessm.models.accelerated import accelerate
from stablessm.models.block import Block
from stablessm.models.classifier import SequenceClassifier
from stablessm.models.config import LanguageConfig, ModelConfig, StackConfig
from stablessm.models.hyena import Hyena
from stablessm.models.language import LanguageModel
from stablessm.models.linear_rnn_mlp import LinearRNNMLP
from stablessm.models.mixers import mixer_names, register_mixer
from stablessm.models.presets import PRESETS, Preset, for_task
from stablessm.models.regressor import SequenceRegressor
from stablessm.models.sampling import sample_tokens
from stablessm.models.sequence_model import SequenceModel
from stablessm.models.stack import SequenceStack
from stablessm.models.summary import summary
from stablessm.models.warming import warm_up

if TYPE_CHECKING:
    from stablessm.models.hf_cache import StableSSMCache
    from stablessm.models.hf_config import StableSSMConfig
    from stablessm.models.hf_model import StableSSMForCausalLM

__all__ = [
    "PRESETS", "Block", "Hyena", "LanguageConfig", "LanguageModel", "LinearRNNMLP", "ModelConfig", "Preset",
    "SequenceClassifier", "SequenceModel", "SequenceRegressor", "SequenceStack", "StableSSMCache", "StableSSMConfig",
    "StableSSMForCausalLM", "StackConfig", "accelerate", "for_task", "mixer_names", "register_mixer", "sample_tokens",
    "summary", "warm_up",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return public(__name__, name, __all__, ("hf_config", "hf_cache", "hf_model"))

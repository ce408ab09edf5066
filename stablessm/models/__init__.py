"""Models made of layers."""

from stablessm.models.block import Block
from stablessm.models.classifier import SequenceClassifier
from stablessm.models.config import ModelConfig, StackConfig
from stablessm.models.hyena import Hyena
from stablessm.models.linear_rnn_mlp import LinearRNNMLP
from stablessm.models.mixers import mixer_names, register_mixer
from stablessm.models.presets import PRESETS, Preset, for_task
from stablessm.models.regressor import SequenceRegressor
from stablessm.models.sequence_model import SequenceModel
from stablessm.models.stack import SequenceStack
from stablessm.models.summary import summary

__all__ = [
    "PRESETS",
    "Block",
    "Hyena",
    "LinearRNNMLP",
    "ModelConfig",
    "Preset",
    "SequenceClassifier",
    "SequenceModel",
    "SequenceRegressor",
    "SequenceStack",
    "StackConfig",
    "for_task",
    "mixer_names",
    "register_mixer",
    "summary",
]

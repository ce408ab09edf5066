"""Recurrent layers that are stable by construction, and that run as a scan, as a convolution or step by step."""

from stablessm.layers.base import SequenceLayer
from stablessm.layers.bidirectional import Bidirectional
from stablessm.layers.continuous_rnn import ContinuousRNN
from stablessm.layers.hgrn import HGRN
from stablessm.layers.lru import LRU
from stablessm.layers.min_gru import MinGRU, MinLSTM
from stablessm.layers.param_groups import param_groups
from stablessm.layers.real_ssm import RealSSM
from stablessm.layers.rg_lru import RGLRU
from stablessm.layers.s4d import S4D
from stablessm.layers.selective import SelectiveSSM
from stablessm.layers.storage import load, save

__all__ = [
    "HGRN", "LRU", "RGLRU", "S4D", "Bidirectional", "ContinuousRNN", "MinGRU", "MinLSTM", "RealSSM", "SelectiveSSM",
    "SequenceLayer", "load", "param_groups", "save",
]  # fmt: skip

"""Recurrent layers that are stable by construction. Scan, convolution and single steps give the same numbers."""

from stablessm.layers.base import SequenceLayer
from stablessm.layers.bidirectional import Bidirectional
from stablessm.layers.continuous_rnn import ContinuousRNN
from stablessm.layers.lru import LRU
from stablessm.layers.param_groups import param_groups
from stablessm.layers.real_ssm import RealSSM
from stablessm.layers.s4d import S4D
from stablessm.layers.storage import load, save

__all__ = ["LRU", "S4D", "Bidirectional", "ContinuousRNN", "RealSSM", "SequenceLayer", "load", "param_groups", "save"]

"""Sequence models with long memory: measure it, build it stable, construct it, reproduce it."""

from stablessm import reparam, scan
from stablessm._errors import ArgumentError, BackendUnavailableError, NumericalError
from stablessm.layers import (
    LRU,
    S4D,
    Bidirectional,
    ContinuousRNN,
    RealSSM,
    SequenceLayer,
    load,
    param_groups,
    save,
)
from stablessm.scan import linear_scan

__version__ = "0.1.0.dev0"

__all__ = [
    "LRU",
    "S4D",
    "ArgumentError",
    "BackendUnavailableError",
    "Bidirectional",
    "ContinuousRNN",
    "NumericalError",
    "RealSSM",
    "SequenceLayer",
    "linear_scan",
    "load",
    "param_groups",
    "reparam",
    "save",
    "scan",
]

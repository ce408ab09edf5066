"""Sequence parallelism: each of several ranks computes a part of a sequence that is too long for one device."""

from stablessm.parallel.carry import Affine, incoming, own_steps
from stablessm.parallel.model import SequenceParallel, incoming_state, sequence_parallel
from stablessm.parallel.scan import sequence_scan, sequence_ssm_scan

__all__ = [
    "Affine",
    "SequenceParallel",
    "incoming",
    "incoming_state",
    "own_steps",
    "sequence_parallel",
    "sequence_scan",
    "sequence_ssm_scan",
]

"""Reconstruction of the past inputs of a linear recurrence from its current state (LRU-UA)."""

from stablessm._renamed import module_names
from stablessm.reconstruction.bases import dct, fourier, haar, pca
from stablessm.reconstruction.conditioning import condition_number, diagnose, required_state_size
from stablessm.reconstruction.decoder import Decoder, decode
from stablessm.reconstruction.diagnosis import Diagnosis, IllConditionedWarning
from stablessm.reconstruction.optimize import optimized
from stablessm.reconstruction.placements import roots_of_unity, uniform_ring
from stablessm.reconstruction.sparse import SparseDecoder, decode_sparse
from stablessm.reconstruction.timestamps import timestamp

__all__ = [
    "Decoder",
    "Diagnosis",
    "IllConditionedWarning",
    "SparseDecoder",
    "condition_number",
    "dct",
    "decode",
    "decode_sparse",
    "diagnose",
    "fourier",
    "haar",
    "optimized",
    "pca",
    "required_state_size",
    "roots_of_unity",
    "timestamp",
    "uniform_ring",
]

__getattr__ = module_names(__name__, "optimised")

"""The past of a linear recurrence, read back from its state (LRU-UA)."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """Return ``optimized`` for its old spelling, with a warning."""
    if name != "optimised":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warnings import warn

    warn("reconstruction.optimised is now reconstruction.optimized", DeprecationWarning, stacklevel=2)
    return optimized

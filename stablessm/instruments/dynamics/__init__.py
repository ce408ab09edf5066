"""Instruments from dynamical systems.

The instruments measure Lyapunov exponents, the information about past inputs in a state, and the past inputs on which
outputs and losses depend.
"""

from stablessm.instruments.dynamics.capacity import InformationCapacity, information_processing_capacity
from stablessm.instruments.dynamics.length import LengthCurve, Remembrance, effective_remembrance, length_curve
from stablessm.instruments.dynamics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from stablessm.instruments.dynamics.receptive import ReceptiveField, receptive_field
from stablessm.instruments.dynamics.state_size import EffectiveStateSize, effective_state_size

__all__ = [
    "EffectiveStateSize",
    "InformationCapacity",
    "LengthCurve",
    "LyapunovSpectrum",
    "ReceptiveField",
    "Remembrance",
    "effective_remembrance",
    "effective_state_size",
    "information_processing_capacity",
    "length_curve",
    "lyapunov_spectrum",
    "receptive_field",
]

"""Instruments: functions that measure the memory, robustness, gradients and states of any callable or module."""

from stablessm.instruments.adapters import NotSupportedError, Stateful
from stablessm.instruments.bernstein import BernsteinCheck, bernstein_bound, bernstein_check
from stablessm.instruments.certificate import LyapunovCertificate, lyapunov_certificate
from stablessm.instruments.curve import MemoryCurve
from stablessm.instruments.decay import DecayFit, fit_decay
from stablessm.instruments.divergence import Divergence, DivergenceError, trace_divergence
from stablessm.instruments.dynamics import (
    EffectiveStateSize,
    InformationCapacity,
    LengthCurve,
    LyapunovSpectrum,
    ReceptiveField,
    Remembrance,
    effective_remembrance,
    effective_state_size,
    information_processing_capacity,
    length_curve,
    lyapunov_spectrum,
    receptive_field,
)
from stablessm.instruments.fading import fading_function
from stablessm.instruments.family import PerturbationFamily
from stablessm.instruments.gradients import GradientOverWeight, GradientTracker, gradient_over_weight
from stablessm.instruments.memory import memory_function
from stablessm.instruments.modes import ModeReport, report_modes
from stablessm.instruments.perturbation import PerturbationCurve, perturbation_error
from stablessm.instruments.radius import NearestBoundary, nearest_boundary, stability_radius
from stablessm.instruments.readback import Readback, readback
from stablessm.instruments.state import check_state
from stablessm.instruments.state_report import StateCase, StateReport
from stablessm.instruments.streaming import StreamingReport, check_streaming

__all__ = [
    "BernsteinCheck",
    "DecayFit",
    "Divergence",
    "DivergenceError",
    "EffectiveStateSize",
    "GradientOverWeight",
    "GradientTracker",
    "InformationCapacity",
    "LengthCurve",
    "LyapunovCertificate",
    "LyapunovSpectrum",
    "MemoryCurve",
    "ModeReport",
    "NearestBoundary",
    "NotSupportedError",
    "PerturbationCurve",
    "PerturbationFamily",
    "Readback",
    "ReceptiveField",
    "Remembrance",
    "StateCase",
    "StateReport",
    "Stateful",
    "StreamingReport",
    "bernstein_bound",
    "bernstein_check",
    "check_state",
    "check_streaming",
    "effective_remembrance",
    "effective_state_size",
    "fading_function",
    "fit_decay",
    "gradient_over_weight",
    "information_processing_capacity",
    "length_curve",
    "lyapunov_certificate",
    "lyapunov_spectrum",
    "memory_function",
    "nearest_boundary",
    "perturbation_error",
    "readback",
    "receptive_field",
    "report_modes",
    "stability_radius",
    "trace_divergence",
]

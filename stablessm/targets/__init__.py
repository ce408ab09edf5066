"""Input-output maps with known memory, to train models on and to test instruments with."""

from stablessm.targets import kernels
from stablessm.targets.base import Target
from stablessm.targets.kernels import Kernel
from stablessm.targets.linear_functional import LinearFunctional
from stablessm.targets.lotka_volterra import LotkaVolterra
from stablessm.targets.nonlinear_functional import NonlinearFunctional
from stablessm.targets.peak_hold import PeakHold
from stablessm.targets.registry import TARGETS
from stablessm.targets.teacher import TeacherRNN
from stablessm.targets.volterra import Volterra

__all__ = [
    "TARGETS",
    "Kernel",
    "LinearFunctional",
    "LotkaVolterra",
    "NonlinearFunctional",
    "PeakHold",
    "Target",
    "TeacherRNN",
    "Volterra",
    "kernels",
]

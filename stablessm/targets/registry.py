"""The table of all targets by name, such as ``TARGETS["sine"]``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stablessm.targets.base import Target
from stablessm.targets.kernels import KERNELS, Exponential
from stablessm.targets.linear_functional import LinearFunctional
from stablessm.targets.lotka_volterra import LotkaVolterra
from stablessm.targets.nonlinear_functional import NonlinearFunctional
from stablessm.targets.peak_hold import PeakHold
from stablessm.targets.teacher import TeacherRNN
from stablessm.targets.volterra import Volterra

SERIES = ((Exponential(1.0),), (Exponential(0.5), Exponential(2.0)), (Exponential(0.2), Exponential(0.2)))
"""Terms of an example Volterra series of order 2 whose quadratic kernel has rank 2."""

TARGETS: dict[str, Callable[..., Target]] = {
    **{name: partial(LinearFunctional, name) for name in KERNELS},
    "nonlinear": NonlinearFunctional,
    "volterra": partial(Volterra, SERIES),
    "teacher": TeacherRNN,
    "lotka_volterra": LotkaVolterra,
    "peak_hold": PeakHold,
}
"""Constructor of every target by name; each takes ``dt`` and its own options, as in ``TARGETS["sine"](dt=0.1)``."""

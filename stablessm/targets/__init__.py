"""Input-output maps whose memory is known: what a model should learn, and what an instrument should find."""

from stablessm.targets.linear_functional import LinearFunctional
from stablessm.targets.peak_hold import PeakHold

__all__ = ["LinearFunctional", "PeakHold"]

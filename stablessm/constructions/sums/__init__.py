"""Kernels as sums of decaying exponentials. No torch, but for layers."""

from stablessm.constructions.sums.exponential_sum import exponential_sum
from stablessm.constructions.sums.result import ExponentialSum, FitError

__all__ = ["ExponentialSum", "FitError", "exponential_sum"]

"""Approximation of kernels by sums of decaying exponentials. Only ``to_layer``, ``save`` and ``load`` import torch."""

from stablessm.constructions.sums.exponential_sum import exponential_sum
from stablessm.constructions.sums.result import ExponentialSum, FitError

__all__ = ["ExponentialSum", "FitError", "exponential_sum"]

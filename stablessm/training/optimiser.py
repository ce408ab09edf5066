"""The old spelling of :mod:`stablessm.training.optimizer`."""

from stablessm.training.optimizer import Optimizer, StackedOptimizer

Optimiser, StackedOptimiser = Optimizer, StackedOptimizer

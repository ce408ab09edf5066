"""An alias of :mod:`stablessm.layers.replayed` (replay of a CUDA graph) for training and benchmarks."""

from stablessm.layers.replayed import Replayed as Replayed

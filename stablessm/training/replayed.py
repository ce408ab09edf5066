"""An alias of :mod:`stablessm.layers.replayed`, which replays CUDA graphs, for training and benchmarks."""

from stablessm.layers.replayed import Replayed as Replayed

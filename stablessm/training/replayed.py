"""The class of :mod:`stablessm.layers.replayed`, under the name that training and benchmarks import."""

from stablessm.layers.replayed import Replayed as Replayed

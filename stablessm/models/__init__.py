"""Models made of layers."""

from stablessm.models.linear_rnn_mlp import LinearRNNMLP

__all__ = ["LinearRNNMLP"]

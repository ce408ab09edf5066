"""Experiment ``ext-activations``: the memory of RNNs with four activation functions."""

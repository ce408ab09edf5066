"""The experiment ``ext-activations``: how the memory of random RNNs decays with four activation functions."""

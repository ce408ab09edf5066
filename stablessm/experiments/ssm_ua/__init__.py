"""Experiments of SSM-UA: State-space Models with Layer-wise Nonlinearity are Universal Approximators."""

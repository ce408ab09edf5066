"""Experiment ``ext-approximation``: attention, gated and linear recurrences on the same targets."""

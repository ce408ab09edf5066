"""Experiment ``ext-precision``: the effect of rounding the recurrent weights."""

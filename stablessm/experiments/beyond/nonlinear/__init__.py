"""Experiment ``ext-nonlinear``: stable matrix maps and the approximation of nonlinear targets with slow memory."""

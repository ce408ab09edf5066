"""Experiment ``su-decay``: convergence rates after a linear layer and after an activation."""

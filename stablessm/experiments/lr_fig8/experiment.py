"""Haar-sparse inputs from the state of a recurrence on the ring (0.99, 1)."""

from __future__ import annotations

from stablessm.experiments.sparse_reconstructions import SparseConfig, experiment

EXPERIMENT = experiment(
    8,
    paper=SparseConfig(r_min=0.99, enough=64),
    smoke=SparseConfig(r_min=0.99, length=256, functions=8, sizes=(8, 16, 32), enough=16, points=8, signals=4, draws=2),
)

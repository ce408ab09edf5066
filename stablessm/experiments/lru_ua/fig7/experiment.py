"""Haar-sparse inputs reconstructed from a state with eigenvalues on the ring (0.95, 1)."""

from __future__ import annotations

from stablessm.experiments.frame import Run
from stablessm.experiments.lru_ua.sparse_reconstructions import SparseConfig, compute_all, experiment


def run(config: SparseConfig, run: Run) -> None:
    """Compute all sizes on this ring."""
    compute_all(config, run)


EXPERIMENT = experiment(
    7,
    run,
    paper=SparseConfig(r_min=0.95, enough=256),
    smoke=SparseConfig(r_min=0.95, length=256, functions=8, sizes=(8, 16, 32), enough=16, points=8, signals=4, draws=2),
)

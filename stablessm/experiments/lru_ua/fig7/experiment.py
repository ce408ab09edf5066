"""Reconstructs inputs that are sparse in the Haar basis from the state of a recurrence. The eigenvalues of the
recurrence have a modulus between 0.95 and 1.
"""

from stablessm.experiments.frame import described
from stablessm.experiments.lru_ua.sparse_reconstructions import SMOKE, SparseConfig, claims, figures, run

SMALL, PAPER = SparseConfig(0.95, **SMOKE), SparseConfig(0.95, enough=256)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMALL, paper=PAPER, minutes=(0.1, 3.0))

"""The experiment ``lr-fig5``: digits reconstructed with roots of unity as eigenvalues (LRU-UA, figure 5)."""

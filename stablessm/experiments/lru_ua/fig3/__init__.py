"""The experiment ``lr-fig3``: digits reconstructed from the last state, by state size and ring (LRU-UA, figure 3)."""

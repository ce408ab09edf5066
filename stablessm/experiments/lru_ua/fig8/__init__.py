"""The experiment ``lr-fig8``: inputs that are sparse in the Haar basis, reconstructed from a state with |λ| in (0.99,
1) (LRU-UA, figure 8).
"""

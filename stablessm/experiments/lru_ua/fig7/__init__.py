"""The experiment ``lr-fig7``: inputs that are sparse in the Haar basis, reconstructed from a state with |λ| in (0.95,
1) (LRU-UA, figure 7).
"""

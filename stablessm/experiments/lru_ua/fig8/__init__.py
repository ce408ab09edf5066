"""The experiment ``lr-fig8``: inputs that are sparse in the Haar basis, reconstructed from the state of a recurrence
with eigenvalues 0.99 < |λ| < 1 (LRU-UA, figure 8).
"""

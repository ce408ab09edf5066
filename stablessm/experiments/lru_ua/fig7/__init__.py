"""The experiment ``lr-fig7``: inputs that are sparse in the Haar basis, reconstructed from the state of a recurrence
with eigenvalues 0.95 < |λ| < 1 (LRU-UA, figure 7).
"""

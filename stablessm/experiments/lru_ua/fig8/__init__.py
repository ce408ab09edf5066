"""The experiment ``lr-fig8``: Haar-sparse inputs reconstructed from a state with |λ| in (0.99, 1) (LRU-UA,
figure 8).
"""

"""The experiment ``lr-fig7``: Haar-sparse inputs reconstructed from a state with |λ| in (0.95, 1) (LRU-UA,
figure 7).
"""

"""The experiment ``lr-fig6``: how well conditioned the reconstruction of inputs that are sparse in a basis is (LRU-UA,
figure 6).
"""

"""The experiment ``lr-fig6``: the condition number of the reconstruction of inputs that are sparse in a basis (LRU-UA,
figure 6).
"""

"""The experiment ``lr-fig6``: condition numbers of reconstructing inputs that are sparse in a basis (LRU-UA,
figure 6).
"""

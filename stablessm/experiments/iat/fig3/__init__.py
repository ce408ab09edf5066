"""The experiment ``ia-fig3``: which random teacher RNNs can students approximate stably, and how does the memory of
these teachers decay? (IAT, figure 3)
"""

"""The experiment ``ia-fig3``: memory functions of random teacher RNNs that students approximate stably (IAT,
figure 3).
"""

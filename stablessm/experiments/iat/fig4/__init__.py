"""The experiment ``ia-fig4``: perturbation errors of models with polynomial memory, with and without stable maps (IAT,
figure 4).
"""

"""The experiment ``ia-fig1``: perturbation errors of linear models with exponential and polynomial memory (IAT, figure
1).
"""

"""The experiment ``ia-fig2``: perturbation errors of tanh RNNs trained on polynomial memory (IAT, figure 2)."""

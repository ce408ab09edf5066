"""Experiment ``ia-fig1``: IAT, figure 1."""

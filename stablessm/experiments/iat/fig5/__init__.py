"""Experiment ``ia-fig5``: IAT, figure 5."""

"""Experiment ``ia-fig4``: IAT, figure 4."""

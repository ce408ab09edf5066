"""Experiment ``ia-fig2``: IAT, figure 2."""

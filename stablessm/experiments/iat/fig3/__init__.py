"""Experiment ``ia-fig3``: IAT, figure 3."""

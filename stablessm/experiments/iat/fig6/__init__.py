"""Experiment ``ia-fig6``: IAT, figure 6."""

"""Experiment ``lr-fig4``: LRU-UA, figure 4."""

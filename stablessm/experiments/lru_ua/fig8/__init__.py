"""Experiment ``lr-fig8``: LRU-UA, figure 8."""

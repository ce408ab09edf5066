"""Experiment ``lr-fig5``: LRU-UA, figure 5."""

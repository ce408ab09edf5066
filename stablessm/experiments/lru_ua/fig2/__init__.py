"""Experiment ``lr-fig2``: LRU-UA, figure 2."""

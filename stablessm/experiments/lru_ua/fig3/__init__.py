"""Experiment ``lr-fig3``: LRU-UA, figure 3."""

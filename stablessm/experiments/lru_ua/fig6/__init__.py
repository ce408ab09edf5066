"""Experiment ``lr-fig6``: LRU-UA, figure 6."""

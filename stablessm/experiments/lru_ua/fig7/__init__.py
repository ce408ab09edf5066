"""Experiment ``lr-fig7``: LRU-UA, figure 7."""

"""Experiment ``lr-fig9``: LRU-UA, figure 9."""

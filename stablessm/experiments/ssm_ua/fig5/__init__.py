"""Experiment ``su-fig5``: SSM-UA, figure 5."""

"""Experiment ``su-fig4``: SSM-UA, figure 4."""

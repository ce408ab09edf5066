"""Experiment ``su-fig2``: SSM-UA, figure 2."""

"""Experiment ``su-fig3``: SSM-UA, figure 3."""

"""Experiment ``su-fig6``: SSM-UA, figure 6."""

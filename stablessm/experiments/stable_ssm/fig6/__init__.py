"""Experiment ``st-fig6``: StableSSM, figure 6."""

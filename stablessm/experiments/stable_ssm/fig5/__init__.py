"""Experiment ``st-fig5``: StableSSM, figure 5."""

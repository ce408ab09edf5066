"""Experiment ``st-fig4``: StableSSM, figure 4."""

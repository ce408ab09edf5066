"""Experiment ``st-fig1``: StableSSM, figure 1."""

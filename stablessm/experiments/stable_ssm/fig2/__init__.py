"""Experiment ``st-fig2``: StableSSM, figure 2."""

"""Experiment ``st-fig3``: StableSSM, figure 3."""

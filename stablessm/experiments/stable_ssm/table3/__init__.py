"""Experiment ``st-table3``: StableSSM, table 3."""

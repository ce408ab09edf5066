"""Experiment ``st-table1``: StableSSM, table 1."""

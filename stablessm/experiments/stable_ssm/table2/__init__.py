"""Experiment ``st-table2``: StableSSM, table 2."""

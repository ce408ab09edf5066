"""Experiment ``st-table4``: StableSSM, table 4, associative recall."""

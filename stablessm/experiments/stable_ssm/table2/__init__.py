"""The experiment ``st-table2`` on table 2 of StableSSM."""

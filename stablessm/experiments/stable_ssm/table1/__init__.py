"""The experiment ``st-table1`` on table 1 of StableSSM."""

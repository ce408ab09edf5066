"""The experiment ``st-table3`` on table 3 of StableSSM."""

"""The experiment ``st-table4`` on table 4 of StableSSM: associative recall."""

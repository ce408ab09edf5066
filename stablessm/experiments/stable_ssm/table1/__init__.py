"""StableSSM, table 1."""

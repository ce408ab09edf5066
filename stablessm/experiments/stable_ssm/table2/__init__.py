"""StableSSM, table 2."""

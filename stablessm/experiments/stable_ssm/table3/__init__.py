"""StableSSM, table 3."""

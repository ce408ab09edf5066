"""StableSSM, figure 4."""

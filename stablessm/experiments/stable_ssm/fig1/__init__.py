"""StableSSM, figure 1."""

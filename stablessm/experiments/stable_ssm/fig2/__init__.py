"""StableSSM, figure 2."""

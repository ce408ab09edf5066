"""StableSSM, figure 6."""

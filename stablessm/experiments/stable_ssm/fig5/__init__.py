"""StableSSM, figure 5."""

"""StableSSM, figure 3."""

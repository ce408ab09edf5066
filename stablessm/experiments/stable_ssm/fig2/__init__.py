"""The experiment ``st-fig2``: gradient scales and gradient-to-weight ratios of the maps (StableSSM, figure 2)."""

"""The experiment ``st-fig3``: gradient-to-weight ratios during training, for each map (StableSSM, figure 3)."""

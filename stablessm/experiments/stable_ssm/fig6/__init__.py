"""The experiment ``st-fig6``: language models trained at four learning rates, for each map (StableSSM, figure 6)."""

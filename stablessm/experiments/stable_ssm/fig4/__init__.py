"""The experiment ``st-fig4``: language models with equal initial eigenvalues, for each map (StableSSM, figure 4)."""

"""The experiment ``st-fig1``: perturbation errors of trained state-space models, for each map (StableSSM, figure 1)."""

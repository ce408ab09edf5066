"""The experiment ``st-fig1`` on figure 1 of StableSSM."""

"""The experiment ``st-fig4`` on figure 4 of StableSSM."""

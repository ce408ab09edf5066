"""The experiment ``st-fig6`` on figure 6 of StableSSM."""

"""The experiment ``st-fig3`` on figure 3 of StableSSM."""

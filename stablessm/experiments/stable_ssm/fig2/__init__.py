"""The experiment ``st-fig2`` on figure 2 of StableSSM."""

"""The experiment ``st-fig5`` on figure 5 of StableSSM."""

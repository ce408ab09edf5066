"""The experiment ``st-table5``: classification of MNIST digits pixel by pixel, for each map (StableSSM, table 5)."""

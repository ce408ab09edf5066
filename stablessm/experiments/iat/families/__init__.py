"""Experiment ``ia-families``: IAT, figure 1, repeated with random rates of the exponentials."""

"""The experiment ``ia-families``: figure 1 of IAT with random instead of evenly spaced rates of the exponentials."""

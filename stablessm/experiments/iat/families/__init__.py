"""The experiment ``ia-families``, which repeats figure 1 of IAT with random rates of the exponentials."""

"""Figure 1 of IAT for random families of rates."""

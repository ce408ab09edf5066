"""IAT, figure 2."""

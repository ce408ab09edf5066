"""IAT, figure 1."""

"""IAT, figure 4."""
